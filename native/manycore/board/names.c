/*
 * The names, and what else programs ask of the name server: one mailbox message a request, answered by one. A name
 * belongs to the process that linked it until that unlinks it or ends, wherever it moves to.
 *
 * Ranks live and die together: when one aborts, faults or is lost with its tile, the others are ended.
 */
#include <errno.h>
#include <string.h>

#include "board.h"

static bool is_running(const struct board *board, uint32_t process)
{
    return window_place(board->window, process).state == PLACE_RUNNING;
}

static struct name *find(struct board *board, const char *name)
{
    for (int i = 0; i < NAMES_MAX; i++)
        if (board->names[i].name[0] && strcmp(board->names[i].name, name) == 0)
            return &board->names[i];
    return NULL;
}

static int link_name(struct board *board, const char *text, uint32_t process, int port)
{
    struct name *name = find(board, text);

    if (!text[0])
        return -EINVAL;
    if (name)
        return name->process == process && name->port == port ? 0 : -EEXIST;
    for (int i = 0; i < NAMES_MAX; i++)
        if (!board->names[i].name[0]) {
            board->names[i].process = process;
            board->names[i].port = port;
            snprintf(board->names[i].name, NAME_SIZE, "%s", text);
            return 0;
        }
    return -ENOSPC;
}

static int unlink_name(struct board *board, const char *text, uint32_t process)
{
    struct name *name = find(board, text);

    if (!name)
        return -ENOENT;
    if (name->process != process)
        return -EPERM;
    name->name[0] = 0;
    return 0;
}

static void answer(struct board *board, uint32_t process, uint32_t port, int result, const struct name *name)
{
    struct server_answer answer = {
        .result = result,
        .process = name ? (int)name->process : 0,
        .port = name ? name->port : 0,
    };

    if (port < PORT_MAX && inbox_put(board->window, process, port, CONSOLE_PROCESS, &answer, sizeof(answer)) == 0)
        window_ring_process(board->window, process);
}

void names_end_process(struct board *board, uint32_t process, int status, const char *why)
{
    struct location *location = &board->window->locations[process];
    struct order order = {.mode = (uint32_t)status};

    if (!is_running(board, process) || atomic_load(&location->end))
        return;
    if (!net_is_here(board, process)) {
        snprintf(order.why, sizeof(order.why), "%s", why);
        if (board->net.host == 0) /* its owner ends it; if it moves meanwhile, its new one */
            net_send(board, net_host_of_tile(board, window_place(board->window, process).tile), FRAME_END, process,
                     &order, sizeof(order));
        return;
    }
    snprintf(location->why, REASON_SIZE, "%s", why);
    atomic_store(&location->end, 1 + (uint32_t)(status & 0xff));
    window_ring_process(board->window, process);
}

/* Whether the number is still that of a rank of the same program. */
static bool is_mate(const struct board *board, uint32_t process, uint32_t other)
{
    const struct location *one = &board->window->locations[process], *two = &board->window->locations[other];

    return process != other && one->ranks == two->ranks && one->members[two->rank] == other &&
           two->members[one->rank] == process;
}

static void end_others(struct board *board, uint32_t process, int status, const char *why)
{
    const struct location *location = &board->window->locations[process];

    for (uint32_t rank = 0; location->ranks > 1 && rank < location->ranks; rank++)
        if (is_mate(board, process, location->members[rank]))
            names_end_process(board, location->members[rank], status, why);
}

void names_process_ended(struct board *board, uint32_t process)
{
    const struct location *location = &board->window->locations[process];
    char why[REASON_SIZE];

    for (int i = 0; i < NAMES_MAX; i++)
        if (board->names[i].process == process)
            board->names[i].name[0] = 0;
    board->awaits[process].name[0] = 0;
    if (location->why[0] && !atomic_load(&location->end)) {
        snprintf(why, sizeof(why), "rank %u: %.90s", location->rank, location->why);
        end_others(board, process, 128, why);
    }
}

static void serve_request(struct board *board, uint32_t process, struct server_request *request)
{
    char why[REASON_SIZE];
    const struct name *name;

    request->name[sizeof(request->name) - 1] = 0;
    name = find(board, request->name);
    switch (request->what) {
    case SERVER_LINK:
        answer(board, process, request->reply, link_name(board, request->name, process, request->number), NULL);
        break;
    case SERVER_UNLINK:
        answer(board, process, request->reply, unlink_name(board, request->name, process), NULL);
        break;
    case SERVER_FIND:
        answer(board, process, request->reply, name ? 0 : -ENOENT, name);
        break;
    case SERVER_AWAIT:
        if (name || !request->name[0])
            answer(board, process, request->reply, name ? 0 : -EINVAL, name);
        else
            board->awaits[process] = *request;
        break;
    case SERVER_ABORT:
        snprintf(why, sizeof(why), "rank %u aborted the program", board->window->locations[process].rank);
        end_others(board, process, request->number, why);
        break;
    default:
        answer(board, process, request->reply, -ENOSYS, NULL);
    }
}

static void serve_waiting(struct board *board)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct server_request *request = &board->awaits[process];
        const struct name *name = request->name[0] ? find(board, request->name) : NULL;

        if (!name)
            continue;
        answer(board, process, request->reply, 0, name);
        request->name[0] = 0;
    }
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &board->clients[i];
        const struct name *name = client->fd >= 0 && client->awaits[0] ? find(board, client->awaits) : NULL;

        if (!name)
            continue;
        client_say(client, "{\"event\": \"named\", \"process\": %u, \"port\": %d}", name->process, name->port);
        client_close(client);
    }
}

void names_take(struct board *board, const struct mail *mail)
{
    struct server_request request;

    if (mail->size != sizeof(request) || mail->from >= PROCESS_MAX)
        return;
    memcpy(&request, mail->bytes, sizeof(request));
    serve_request(board, mail->from, &request);
}

void names_serve(struct board *board)
{
    struct mail mail;

    while (inbox_take(board->window, CONSOLE_PROCESS, SERVER_PORT, &mail))
        names_take(board, &mail);
    serve_waiting(board);
}
