/*
 * wherry-tiles, the name server and launcher of the tiles of one host: it starts the tiles, has the location of
 * every tile process (the location entries), asks for moves, and reports a process lost whose tile died with it. It
 * runs no user code and takes no part in the downtime of a move.
 *
 * Its parts: each uses only parts to the left of it; frames and events come back by the handlers that board_init()
 * gives them:
 *
 *   hosts/      channel, authentication, clock_identity -> network -> join -> membership
 *                                                          network -> processes -> parcel_router
 *   migration/  process_state -> move_record -> outgoing_move, incoming_move -> move_proxy -> move_coordinator
 *   .           location_directory -> moves; name_service, load_report; client -> events; all of them -> board
 *               tile_processes, program_loader; board -> launch -> commands -> main
 */
#ifndef WHERRY_MANYCORE_BOARD_H
#define WHERRY_MANYCORE_BOARD_H

#include "events.h"
#include "hosts/membership.h"
#include "load_report.h"
#include "location_directory.h"
#include "moves.h"

struct board {
    struct shared_memory *shared;
    bool stopping; /* a client or a signal asks for that; net.stopping: the leader */
    struct net net;
    struct parcel_router router;
    struct move_proxy proxy;
    struct move_coordinator coordinator;
    struct directory directory;
    struct moves moves;
    struct names names;
    struct reports reports;
    struct clients clients;
    struct events events;
};

/* Connects the parts; `shared` is mapped. */
void board_init(struct board *board, struct shared_memory *shared);
/* One turn of everything but the clients' commands, after poll() or, without `fds`, at any time. */
void board_serve(struct board *board, const struct pollfd *fds, int count);
/* The number belongs to another process from now on, of which nothing is known. */
void board_clear_process(struct board *board, uint32_t process);

#endif
