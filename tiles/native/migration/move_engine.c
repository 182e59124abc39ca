/* See move_engine.h: when a side begins and ends, and which thread runs the tasks. */
#include "move_engine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernel/address_space.h"
#include "../kernel/process.h"
#include "destination.h"
#include "move_graph.h"
#include "portal_transfer.h"
#include "source.h"

static void begin(struct tile *tile, struct move *move, bool source)
{
    struct move_side *side = tile->side;

    side->move = move;
    side->source = source;
    side->process = move->process;
    side->peer = source ? move->to : move->from;
    side->place = move->place;
    side->wrong = NULL;
}

/*
 * From here to finish() the record belongs to this move, and this tile may write to its slot. `in_hand` is stored
 * before the record is read; the board writes the record before it reads `in_hand`. So one of the two sees the other.
 */
static void take_in_hand(struct tile *tile, const struct move *move)
{
    atomic_store(&tile->shared->tiles[tile->index].in_hand, 1 + (uint32_t)(move - tile->shared->moves));
}

static void let_go(struct tile *tile)
{
    atomic_store(&tile->shared->tiles[tile->index].in_hand, 0);
}

static int arm(void *context)
{
    struct tile *tile = context;

    tile->side->move = NULL;
    return EXIT_NEXT;
}

/* A move of our process whose destination waits for this tile. */
static bool is_request(const struct tile *tile, const struct move *move)
{
    uint32_t step = atomic_load(&move->step);

    return (step == MOVE_TRACKING || step == MOVE_RESERVED) && move->from == tile->index &&
           move->process == tile->process && move->place == tile->place;
}

static bool begin_source(struct tile *tile)
{
    for (uint32_t to = 0; to < tile->shared->tile_count; to++) {
        struct move *move = &tile->shared->moves[to];

        if (!is_request(tile, move))
            continue;
        take_in_hand(tile, move);
        if (is_request(tile, move)) {
            begin(tile, move, true);
            return true;
        }
        let_go(tile);
    }
    return false;
}

static bool begin_destination(struct tile *tile)
{
    struct move *move = &tile->shared->moves[tile->index];

    if (atomic_load(&move->step) != MOVE_ASKED)
        return false;
    take_in_hand(tile, move);
    if (atomic_load(&move->step) == MOVE_ASKED) {
        begin(tile, move, false);
        return true;
    }
    let_go(tile);
    return false;
}

/* A process that the location entry gives to us and that we do not run: the name server has started it here. */
static bool find_own(const struct tile *tile, uint32_t *process)
{
    for (*process = 1; *process < PROCESS_MAX; ++*process) {
        struct place place = shared_place(tile->shared, *process);

        if (place.state == PLACE_RUNNING && place.tile == tile->index)
            return true;
    }
    return false;
}

static int wait_idle(struct tile *tile)
{
    uint32_t process;

    if (tile->area)
        return begin_source(tile) ? EXIT_NEXT : EXIT_AGAIN;
    if (find_own(tile, &process))
        return EXIT_STARTED;
    return begin_destination(tile) ? EXIT_ASKED : EXIT_AGAIN;
}

static int wait_source(struct tile *tile)
{
    struct move *move = tile->side->move;
    uint32_t step = atomic_load(&move->step);

    if (tile->freezing_for_move) /* sealed; whatever has become of the move since, the entry decides */
        return EXIT_NEXT;
    if (!tile->area || tile->place != tile->side->place || move->place != tile->side->place || step < MOVE_TRACKING ||
        step > MOVE_RESERVED || !side_is_alive(tile, tile->side->peer))
        return EXIT_OVER;
    if (step == MOVE_RESERVED && !tile->ending)
        return EXIT_FREEZE;
    return atomic_load(&move->wanted) != atomic_load(&move->scanned) ? EXIT_SCAN : EXIT_AGAIN;
}

static int wait_destination(struct tile *tile)
{
    struct move *move = tile->side->move;
    uint32_t step = atomic_load(&move->step);

    if (step == MOVE_FROZEN)
        return EXIT_NEXT;
    if (step == MOVE_TRACKING && atomic_load(&move->wanted) == atomic_load(&move->scanned))
        return EXIT_ROUND;
    if ((step == MOVE_TRACKING || step == MOVE_RESERVED) && side_may_go_on(tile, step))
        return EXIT_AGAIN;
    if (atomic_load(&move->step) == MOVE_FROZEN) /* just now */
        return EXIT_NEXT;
    tile->side->wrong = side_is_undecided(tile) ? "the source did not freeze" : "the process has ended";
    return EXIT_LOST;
}

static int wait(void *context)
{
    struct tile *tile = context;
    int found = EXIT_NEXT;

    if (!tile->side->move) {
        found = wait_idle(tile);
        if (found != EXIT_NEXT)
            return found;
    }
    return tile->side->source ? wait_source(tile) : wait_destination(tile);
}

static int handle(void *context)
{
    struct tile *tile = context;
    struct move_side *side = tile->side;

    side_set_deadline(tile, FROZEN_MS);
    side->group = side->piece = side->pieces = 0;
    if (side->move->mode >= MODE_COUNT && !side->source) /* without an answer, the source resumes the process */
        return EXIT_FAILED;
    if (side->move->mode == MODE_FAITHFUL)
        return EXIT_NEXT;
    return side->source ? EXIT_OVER : EXIT_ELSE;
}

static int start(void *context)
{
    struct tile *tile = context;
    uint32_t process;
    struct place place;
    int error;

    if (!find_own(tile, &process))
        return EXIT_NEXT;
    place = shared_place(tile->shared, process);
    error = address_space_map(tile, place.slot, shared_area(tile->shared, place.slot));
    if (error < 0) {
        fprintf(stderr, "wherry-tile: cannot map the user region: %s\n", strerror(-error));
        exit(1);
    }
    process_adopt(tile, process, place, NULL);
    return EXIT_NEXT;
}

static int finish(void *context)
{
    struct tile *tile = context;

    dirty_tracking_end(&tile->dirty_tracking);
    if (!tile->side->source && !tile->area)
        address_space_unmap();
    let_go(tile);
    return EXIT_NEXT;
}

static task_body *const bodies[MOVE_TASKS] = {
    [TASK_ARM] = arm,
    [TASK_WAIT] = wait,
    [TASK_HANDLE] = handle,
    [TASK_GROUP] = portal_transfer_group,
    [TASK_LOOP] = portal_transfer_loop,
    [TASK_WRITE] = portal_transfer_is_used,
    [TASK_AWRITE] = portal_transfer_put,
    [TASK_SENT] = portal_transfer_sent,
    [TASK_READ] = portal_transfer_is_used,
    [TASK_ALLOW] = portal_transfer_allow,
    [TASK_AREAD] = portal_transfer_place,
    [TASK_RECEIVED] = portal_transfer_received,
    [TASK_FINISH] = finish,
    [TASK_START] = start,
    [TASK_RESERVE] = destination_reserve,
    [TASK_SCAN] = source_scan,
    [TASK_ROUND] = destination_round,
    [TASK_FREEZE] = source_freeze,
    [TASK_SEAL] = source_seal,
    [TASK_COPY] = destination_copy,
    [TASK_CHECK] = destination_check,
    [TASK_PAGES] = destination_pages,
    [TASK_COMMIT] = destination_commit,
    [TASK_ADOPT] = destination_adopt,
    [TASK_DISCARD] = destination_discard,
    [TASK_AWAIT] = source_await,
    [TASK_TAKE_BACK] = source_take_back,
};

void move_engine_run(struct tile *tile)
{
    uint32_t seen = 1;

    if (atomic_fetch_add(&tile->side->calls, 1))
        return; /* the thread that runs the tasks now will run them once more */
    do {
        seen = atomic_load(&tile->side->calls);
        tasks_run(&tile->side->tasks);
    } while (!atomic_compare_exchange_strong(&tile->side->calls, &seen, 0));
}

bool move_engine_is_active(struct tile *tile)
{
    return tile->side->move != NULL;
}

/* Between the request to freeze and the commit. */
static bool is_hot(struct tile *tile)
{
    struct move *move = tile->side->move;
    uint32_t step = move ? atomic_load(&move->step) : MOVE_NONE;

    return (step == MOVE_RESERVED || step == MOVE_FROZEN) && (!tile->side->source || tile->frozen);
}

/* A process of another host needs three more threads before it is here; polling would take the CPU from them. */
static void await_far(struct tile *tile)
{
    _Atomic uint32_t *bell = &tile->shared->tiles[tile->index].bell;
    int64_t until = shared_now() + POLL_REMOTE_NS;

    while (side_is_remote(tile) && !tile->side->source && is_hot(tile) && shared_now() < until) {
        uint32_t seen = atomic_load(bell);

        move_engine_run(tile);
        if (is_hot(tile))
            shared_wait(bell, seen, POLL_REMOTE_NS);
    }
}

/* An idle core polls for the other side and runs the tasks, for at most POLL_NS. */
static void poll_move(struct tile *tile)
{
    struct tile_record *record = &tile->shared->tiles[tile->index];
    int64_t until = shared_now() + POLL_NS;

    move_engine_run(tile);
    if (side_is_remote(tile)) {
        await_far(tile);
        return;
    }
    if (tile->cpus > 1)
        atomic_store(&record->polling, 1);
    move_engine_run(tile);
    while (tile->cpus > 1 && is_hot(tile) && shared_now() < until) {
        sched_yield(); /* the awaited process may have to run here */
        move_engine_run(tile);
    }
    atomic_store(&record->polling, 0); /* the master sees what rang meanwhile within SLICE_MS */
    move_engine_run(tile);
}

void move_engine_start(struct tile *tile, struct move_side *side)
{
    tile->side = side;
    tile->poll_move = poll_move;
    tasks_start(&side->tasks, &move_graph, bodies, tile, TASK_ARM);
}
