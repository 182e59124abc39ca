/* See sim_tile.h. */
#include "sim_tile.h"

#include <string.h>

struct memory *sim_memory(const struct tile *tile)
{
    return (struct memory *)(shared_image(tile->shared, tile->slot) + MEMORY);
}

static void mark(struct move *move)
{
    memset(move->written, 0, sizeof(move->written));
    for (uint32_t offset = 0; offset < END; offset += PAGE_SIZE)
        move->written[0] |= 1ull << offset / PAGE_SIZE;
    move->tracking = 2;
}

static uint8_t *piece_at(struct shared_memory *shared, uint32_t slot, uint32_t piece)
{
    struct user_area *area = shared_area(shared, slot);

    return piece == 0 ? area->head : piece == 1 ? (uint8_t *)&area->threads[0]
                                                : shared_image(shared, slot) + (piece == 2 ? 0 : MEMORY);
}

static uint32_t slot_of(const struct move *move)
{
    uint32_t slot = place_unpack(move->place).slot;

    return slot < TILE_MAX ? slot : move->slot;
}

static void release(struct tile *tile)
{
    tile->process = 0;
    tile->frozen = false;
}

static struct move *find_request(struct tile *tile)
{
    for (uint32_t to = 0; to < TILES; to++) {
        struct move *move = &tile->shared->moves[to];

        if (atomic_load(&move->step) >= MOVE_TRACKING && atomic_load(&move->step) <= MOVE_ABORTED &&
            move->from == tile->number && move->process == tile->process && move->place == tile->place)
            return move;
    }
    return NULL;
}

static void step_to(struct move *move, uint32_t from, uint32_t to)
{
    atomic_compare_exchange_strong(&move->step, &from, to);
}

static void give_frozen(struct tile *tile, struct move *move)
{
    struct place place = place_unpack(tile->place);

    if (atomic_load(&tile->shared->locations[tile->process].word) != tile->place) {
        release(tile);
    } else if (!move || atomic_load(&move->step) == MOVE_ABORTED ||
               !atomic_load(&tile->shared->tiles[move->to].alive)) {
        if (move)
            step_to(move, MOVE_FROZEN, MOVE_ABORTED);
        shared_commit(tile->shared, tile->process, tile->place, place);
        place.epoch++;
        tile->place = place_pack(place);
        tile->frozen = false;
    } else if (move->mode == MODE_FAITHFUL && atomic_load(&move->allow) > atomic_load(&move->sent)) {
        memcpy(move->piece, piece_at(tile->shared, tile->slot, atomic_load(&move->sent)), PAGE_SIZE);
        atomic_fetch_add(&move->sent, 1);
    }
}

static void give(struct tile *tile)
{
    struct move *move = find_request(tile);

    if (tile->frozen) {
        give_frozen(tile, move);
    } else if (move && atomic_load(&move->step) == MOVE_TRACKING &&
               atomic_load(&move->wanted) != atomic_load(&move->scanned)) {
        mark(move);
        atomic_fetch_add(&move->scanned, 1);
    } else if (move && atomic_load(&move->step) == MOVE_RESERVED) {
        uint32_t reserved = MOVE_RESERVED;

        mark(move);
        user_area_seal(shared_area(tile->shared, tile->slot));
        move->freezing = move->frozen = shared_now();
        tile->frozen = atomic_compare_exchange_strong(&move->step, &reserved, MOVE_FROZEN);
    }
}

static bool takes_pieces(struct tile *tile, struct move *move)
{
    if (tile->pieces == PIECES)
        return false;
    if (atomic_load(&move->allow) == tile->pieces) {
        atomic_store(&move->allow, tile->pieces + 1);
    } else if (atomic_load(&move->sent) == tile->pieces + 1) {
        memcpy(piece_at(tile->shared, move->slot, tile->pieces), move->piece, PAGE_SIZE);
        atomic_store(&move->taken, ++tile->pieces);
    }
    return true;
}

static void copy_here(struct tile *tile, struct move *move)
{
    if (slot_of(move) == move->slot)
        return;
    memcpy(shared_area(tile->shared, move->slot), shared_area(tile->shared, slot_of(move)), sizeof(struct user_area));
    memcpy(shared_image(tile->shared, move->slot), shared_image(tile->shared, slot_of(move)), END);
}

static void adopt(struct tile *tile, struct move *move)
{
    struct place place = {.state = PLACE_RUNNING, .slot = (uint8_t)move->slot, .tile = (uint8_t)tile->number};
    uint32_t process = move->process;

    tile->move = NULL;
    copy_here(tile, move);
    if (chance(5) || user_area_check(shared_area(tile->shared, move->slot), process, tile->shared->xfeatures,
                                     tile->shared->xsize)) {
        snprintf(move->why, sizeof(move->why), "refused");
        step_to(move, MOVE_FROZEN, MOVE_ABORTED);
        return;
    }
    move->copied = shared_now();
    if (!shared_commit(tile->shared, process, move->place, place)) {
        step_to(move, MOVE_FROZEN, MOVE_ABORTED);
        return;
    }
    move->committed = shared_now();
    tile->process = process;
    tile->slot = move->slot;
    tile->place = atomic_load(&tile->shared->locations[process].word);
    atomic_fetch_add(&tile->shared->locations[process].moves, 1);
    world.moves++;
    step_to(move, MOVE_FROZEN, MOVE_DONE);
    atomic_store(&move->first, move->committed);
    atomic_store(&move->all, move->committed);
}

static void take(struct tile *tile)
{
    struct move *move = tile->move;
    uint32_t step = atomic_load(&move->step);

    if (step < MOVE_TRACKING || step == MOVE_ABORTED ||
        atomic_load(&tile->shared->locations[move->process].word) != move->place) {
        if (step < MOVE_DONE)
            step_to(move, step, MOVE_ABORTED);
        tile->move = NULL;
    } else if (step == MOVE_TRACKING && atomic_load(&move->wanted) == atomic_load(&move->scanned)) {
        move->rounds++;
        if (chance(50))
            atomic_fetch_add(&move->wanted, 1);
        else
            step_to(move, MOVE_TRACKING, MOVE_RESERVED);
    } else if (step == MOVE_FROZEN && !(move->mode == MODE_FAITHFUL && takes_pieces(tile, move))) {
        adopt(tile, move);
    }
}

static void look(struct tile *tile)
{
    struct move *own = &tile->shared->moves[tile->number];

    for (uint32_t process = 1; process <= PROCESSES; process++) {
        struct place place = shared_place(tile->shared, process);

        if (place.state != PLACE_RUNNING || place.tile != tile->number)
            continue;
        tile->process = process;
        tile->slot = place.slot;
        tile->place = place_pack(place);
        return;
    }
    if (atomic_load(&own->step) != MOVE_ASKED)
        return;
    tile->move = own;
    tile->pieces = 0;
    if (own->mode == MODE_PRECOPY)
        atomic_store(&own->wanted, 1);
    step_to(own, MOVE_ASKED, own->mode == MODE_PRECOPY ? MOVE_TRACKING : MOVE_RESERVED);
}

/* The process does something: it sends the next number to another, or takes one. */
static void run_process(struct tile *tile)
{
    struct memory *memory = sim_memory(tile);
    uint32_t other = 1 + draw(PROCESSES);
    struct mail mail;
    struct note note;

    if (!world.calm && chance(50) && other != tile->process) {
        note = (struct note){tile->process, memory->sent[other] + 1};
        if (mailbox_put(tile->shared, other, PORT, tile->process, &note, sizeof(note)) == 0)
            memory->sent[other]++;
    } else if (mailbox_take(tile->shared, tile->process, PORT, &mail)) {
        memcpy(&note, mail.bytes, sizeof(note));
        REQUIRE(note.from == mail.from && note.from <= PROCESSES && note.number == memory->received[note.from] + 1);
        memory->received[note.from]++;
    }
}

void sim_step_tile(struct tile *tile)
{
    struct place place;

    if (tile->dead || world.dead[tile->number / EACH])
        return;
    if (!tile->process && tile->move)
        take(tile);
    else if (!tile->process)
        look(tile);
    else if (!tile->frozen && atomic_load(&tile->shared->locations[tile->process].end)) {
        place = place_unpack(tile->place);
        place.state = PLACE_ENDED;
        shared_commit(tile->shared, tile->process, tile->place, place);
        release(tile);
    } else {
        give(tile);
        if (tile->process && !tile->frozen)
            run_process(tile);
    }
}
