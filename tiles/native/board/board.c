/* See board.h. */
#include "board.h"

#include "hosts/processes.h"
#include "migration/incoming_move.h"

static void on_speaks(void *context, uint32_t process)
{
    struct board *board = context;

    incoming_has_come(&board->proxy, process);
}

static void on_console(void *context, uint32_t port, const struct mail *mail)
{
    struct board *board = context;

    if (port == SERVER_PORT)
        names_request(&board->names, mail);
    else if (port == 0)
        events_output(&board->events, mail);
}

static void on_move_ended(void *context, const struct move *move, bool done)
{
    struct board *board = context;

    events_move_ended(&board->events, move, done);
}

void board_init(struct board *board, struct shared_memory *shared)
{
    const struct router_events events = {.context = board, .speaks = on_speaks, .console = on_console};

    board->shared = shared;
    net_init(&board->net, shared);
    processes_init(&board->net);
    router_init(&board->router, &board->net, &events);
    proxy_init(&board->proxy, &board->router, board->coordinator.coordinated);
    coordinator_init(&board->coordinator, &board->proxy);
    directory_init(&board->directory, &board->coordinator);
    moves_init(&board->moves, &board->coordinator, on_move_ended, board);
    names_init(&board->names, &board->net);
    report_init(&board->reports, &board->net);
    client_init(&board->clients);
    events_init(&board->events, &board->clients, &board->names);
}

void board_serve(struct board *board, const struct pollfd *fds, int count)
{
    if (board->net.hosts > 1) {
        membership_serve(&board->net, fds, count);
        report_serve(&board->reports);
        proxy_serve(&board->proxy);
        router_serve(&board->router);
        directory_serve(&board->directory);
    }
    moves_serve(&board->moves);
    if (board->net.host != 0)
        return; /* requests and output of programs here go to the leader */
    names_serve(&board->names);
    events_serve(&board->events);
}

void board_clear_process(struct board *board, uint32_t process)
{
    events_clear(&board->events, process);
    names_clear(&board->names, process);
    proxy_clear(&board->proxy, process);
}
