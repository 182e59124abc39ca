/* See protocol_tasks.h. */
#include "protocol_tasks.h"

#include "protocol.h"

static bool has_patience(const struct tile *tile)
{
    return !chance(world.calm ? 30 : 2) && !heard(tile, ABORTED, 1) && world.entry.epoch == tile->move;
}

static int arm(void *context)
{
    struct tile *tile = context;

    tile->active = tile->sealed = tile->checked = false;
    return EXIT_NEXT;
}

static int wait_idle(struct tile *tile)
{
    bool source = tile->epoch;

    if (!source && world.entry.owner == tile->number)
        return EXIT_STARTED;
    /* A move that was called off is over, also when an older message comes after that. */
    if (tile->heard[ABORTED] || !tile->heard_move || tile->heard_move != (source ? tile->epoch : world.entry.epoch) ||
        !(source ? tile->heard[TRACKING] || tile->heard[RESERVED] : tile->heard[ASKED]))
        return EXIT_AGAIN;
    tile->active = true;
    tile->source = source;
    tile->move = tile->heard_move;
    tile->peer = source ? tile->heard_from : world.entry.owner;
    tile->piece = 0;
    if (!source)
        tile->heard[ASKED] = 0; /* done with that */
    return source ? EXIT_NEXT : EXIT_ASKED;
}

static int wait_source(struct tile *tile)
{
    if (tile->sealed)
        return EXIT_NEXT;
    if (heard(tile, ABORTED, 1) || world.entry.epoch != tile->move || chance(2))
        return EXIT_OVER;
    if (heard(tile, RESERVED, 1))
        return EXIT_FREEZE;
    return heard(tile, WANTED, tile->piece + 1) ? EXIT_SCAN : EXIT_AGAIN;
}

static int wait(void *context)
{
    struct tile *tile = context;
    int found = tile->active ? EXIT_NEXT : wait_idle(tile);

    if (found != EXIT_NEXT)
        return found;
    if (tile->source)
        return wait_source(tile);
    if (heard(tile, FROZEN, 1)) {
        tile->image = tile->heard_image;
        return EXIT_NEXT;
    }
    if (world.precopy && tile->piece && heard(tile, SCANNED, tile->piece))
        return EXIT_ROUND;
    return has_patience(tile) ? EXIT_AGAIN : EXIT_LOST;
}

static int handle(void *context)
{
    struct tile *tile = context;

    tile->piece = 0;
    return world.faithful ? EXIT_NEXT : tile->source ? EXIT_OVER : EXIT_ELSE;
}

static int group(void *context)
{
    struct tile *tile = context;

    if (!tile->source && tile->piece == 1 && !tile->checked) {
        tile->checked = true;
        return EXIT_ELSE;
    }
    return tile->piece < PIECES ? EXIT_NEXT : tile->source ? EXIT_OVER : EXIT_END;
}

static int loop(void *context)
{
    struct tile *tile = context;

    if (tile->piece == PIECES || (tile->piece == 1 && !tile->source && !tile->checked))
        return EXIT_END;
    return tile->source ? EXIT_NEXT : EXIT_ELSE;
}

static int is_used(void *context)
{
    (void)context;
    return EXIT_ELSE;
}

static int patient(struct tile *tile)
{
    return has_patience(tile) ? EXIT_AGAIN : EXIT_FAILED;
}

static int put(void *context)
{
    struct tile *tile = context;

    if (!heard(tile, ALLOWED, tile->piece + 1))
        return patient(tile);
    tell(tile, PIECE, ++tile->piece);
    return EXIT_NEXT;
}

static int sent(void *context)
{
    struct tile *tile = context;

    return heard(tile, TAKEN, tile->piece) ? EXIT_NEXT : patient(tile);
}

static int allow(void *context)
{
    struct tile *tile = context;

    tell(tile, ALLOWED, tile->piece + 1);
    return EXIT_NEXT;
}

static int place(void *context)
{
    (void)context;
    return EXIT_NEXT;
}

static int received(void *context)
{
    struct tile *tile = context;

    if (!heard(tile, PIECE, tile->piece + 1))
        return patient(tile);
    tell(tile, TAKEN, ++tile->piece);
    return EXIT_NEXT;
}

static int finish(void *context)
{
    struct tile *tile = context;

    REQUIRE(!tile->frozen); /* no process is frozen for ever */
    return EXIT_NEXT;
}

static int start(void *context)
{
    struct tile *tile = context;

    REQUIRE(world.entry.epoch == 1); /* a process that a move has brought is never started a second time */
    tile->epoch = 1;
    tile->runs = true;
    return EXIT_NEXT;
}

static int reserve(void *context)
{
    struct tile *tile = context;

    if (chance(3))
        return EXIT_FAILED;
    if (world.precopy)
        tell(tile, WANTED, ++tile->piece);
    tell(tile, world.precopy ? TRACKING : RESERVED, 1);
    return EXIT_NEXT;
}

static int scan(void *context)
{
    struct tile *tile = context;

    tell(tile, SCANNED, ++tile->piece);
    return EXIT_NEXT;
}

static int next_round(void *context)
{
    struct tile *tile = context;

    if (tile->piece < PIECES && chance(60)) {
        tell(tile, WANTED, ++tile->piece);
    } else {
        tile->piece = 0;
        tell(tile, RESERVED, 1);
    }
    return EXIT_NEXT;
}

static int freeze(void *context)
{
    struct tile *tile = context;

    tile->frozen = true; /* no core takes a thread; the last one to give up its own comes to it some time later */
    if (chance(40))
        return EXIT_AGAIN;
    tile->runs = false;
    return EXIT_NEXT;
}

static int seal(void *context)
{
    struct tile *tile = context;

    if (heard(tile, ABORTED, 1)) {
        tile->frozen = false;
        tile->runs = true;
        return EXIT_FAILED;
    }
    tile->sealed = true;
    tell(tile, FROZEN, 1);
    return EXIT_NEXT;
}

static int check(void *context)
{
    (void)context;
    return chance(5) ? EXIT_FAILED : world.faithful ? EXIT_ELSE : EXIT_NEXT;
}

static int commit(void *context)
{
    struct tile *tile = context;

    return swap(tile->move, tile->number) ? EXIT_NEXT : EXIT_FAILED;
}

static int adopt(void *context)
{
    struct tile *tile = context;

    tile->epoch = tile->move + 1;
    tile->state = tile->image;
    tile->runs = true;
    tell(tile, DONE, 1);
    world.moves++;
    return EXIT_NEXT;
}

static int discard(void *context)
{
    struct tile *tile = context;

    tell(tile, ABORTED, 1);
    return EXIT_NEXT;
}

static int await(void *context)
{
    struct tile *tile = context;

    return !heard(tile, DONE, 1) && has_patience(tile) ? EXIT_AGAIN : EXIT_NEXT;
}

static int take_back(void *context)
{
    struct tile *tile = context;
    bool ours = swap(tile->move, tile->number);

    tile->epoch = ours ? tile->move + 1 : 0;
    tile->runs = ours;
    tile->frozen = false;
    return EXIT_NEXT;
}

task_body *const protocol_tasks[MOVE_TASKS] = {
    [TASK_ARM] = arm, [TASK_WAIT] = wait, [TASK_HANDLE] = handle, [TASK_GROUP] = group, [TASK_LOOP] = loop,
    [TASK_WRITE] = is_used, [TASK_AWRITE] = put, [TASK_SENT] = sent, [TASK_READ] = is_used, [TASK_ALLOW] = allow,
    [TASK_AREAD] = place, [TASK_RECEIVED] = received, [TASK_FINISH] = finish, [TASK_START] = start,
    [TASK_RESERVE] = reserve, [TASK_SCAN] = scan, [TASK_ROUND] = next_round, [TASK_FREEZE] = freeze,
    [TASK_SEAL] = seal, [TASK_COPY] = place, [TASK_CHECK] = check, [TASK_PAGES] = place, [TASK_COMMIT] = commit,
    [TASK_ADOPT] = adopt, [TASK_DISCARD] = discard, [TASK_AWAIT] = await, [TASK_TAKE_BACK] = take_back,
};
