#include "levels.h"

#include <stdlib.h>
#include <string.h>

enum {
    TURNS_FLAT = 16,    /* collectives of the library's own between two questions for newer maps, which take one more */
    TURNS = 64,         /* of those by sites that tell of none */
    HEAVY = 256 * 1024, /* bytes that a late rank keeps for others, and count like another collective */
    RANK_BITS = 24,     /* of an epoch and a rank in one word */
    LAST_RANK = (1 << RANK_BITS) - 1,
    SHORT = 4096,       /* bytes that are handed out in one message with the news */
};

bool levels, levels_alike;

/* Whether all ranks of a communicator say yes. Needs no memory of ours, which a rank might not have. */
static bool agreed(word comm, bool yes)
{
    unsigned char mine = yes, all = 0;

    return !mpi.allreduce((word)&mine, (word)&all, 1, mpi.byte, mpi.bitwise_and, comm) && all;
}

void levels_begin(bool usable)
{
    const char *text = getenv("WHERRY_MPI_SITES"); /* the launcher has given it to all or to none */
    uint64_t mine[3], all[3] = {0};
    static bool begun;
    int size = 0;

    if (begun || !text || !mpi.collectives || is_spawned())
        return;
    begun = true;
    mpi.comm_size(mpi.world, (word)&size);
    usable = map_begin(text, size) && usable && size <= LAST_RANK;
    mine[0] = usable ? UINT64_MAX : 0;
    mine[1] = map_first_check;
    mine[2] = ~map_first_check;
    levels = !mpi.allreduce((word)mine, (word)all, sizeof mine, mpi.byte, mpi.bitwise_and, mpi.world) && all[0];
    levels_alike = levels && all[1] == ~all[2]; /* the bits set at all, and the bits set at none */
}

void levels_forget(struct levels *found)
{
    if (!found)
        return;
    if (found->local)
        mpi.comm_free((word)&found->local);
    if (found->across)
        mpi.comm_free((word)&found->across);
    free(found->numbers);
    free(found->spare);
    free(found->offers);
    choices_free(found->choices);
    free(found);
}

static int place_of(const int *world, int rank)
{
    return world ? world[rank] : rank;
}

/* Whether all ranks are in maps: the same at each of them. */
static bool is_mapped(int size, const int *world)
{
    for (int rank = 0; rank < size; rank++)
        if (place_of(world, rank) < 0 || place_of(world, rank) >= map_size)
            return false;
    return true;
}

static size_t numbers_of(int size)
{
    return 6 * (size_t)size + 1;
}

/* Fills the lists of the ranks and their sites. */
static void number_sites(struct levels *new, const struct map *map)
{
    int *known, *counts;

    new->site_of = new->numbers;
    new->number_of = new->site_of + new->size;
    new->order = new->number_of + new->size;
    known = new->order + new->size; /* of each site, its number in the map */
    counts = known + new->size;
    memset(counts, 0, sizeof *counts * (size_t)new->size);
    new->begins = counts + new->size;
    new->sites = 0;
    new->in_order = true;
    for (int rank = 0; rank < new->size; rank++) {
        int mapped = map->sites[place_of(new->world, rank)], site = 0;

        while (site < new->sites && known[site] != mapped)
            site++;
        if (site == new->sites)
            known[new->sites++] = mapped;
        else if (site != new->site_of[rank - 1])
            new->in_order = false;
        new->site_of[rank] = site;
        new->number_of[rank] = counts[site]++;
    }
    new->begins[0] = 0;
    for (int site = 0; site < new->sites; site++)
        new->begins[site + 1] = new->begins[site] + counts[site];
    for (int rank = 0; rank < new->size; rank++)
        new->order[new->begins[new->site_of[rank]] + new->number_of[rank]] = rank;
    new->site = new->site_of[new->rank];
    new->number = new->number_of[new->rank];
}

/* Makes the communicator of all ranks. A split copies no attributes of the program's, as a duplicate would. */
static bool make_across(struct levels *at)
{
    if (mpi.comm_split(at->comm, 0, (word)at->rank, (word)&at->across))
        at->across = 0;
    return at->across && !mpi.set_errhandler(at->across, mpi.errors_return);
}

/* Makes that of the site's ranks, with messages between them alone, from one of all ranks. */
static bool make_local(struct levels *new, word from)
{
    word all = 0, mine = 0;
    bool failed = mpi.comm_group(from, (word)&all);

    failed = failed || mpi.group_incl(handle(all), (word)ranks_at(new, new->site),
                                      (word)(new->order + new->begins[new->site]), (word)&mine);
    if (failed || mpi.comm_create_group(from, handle(mine), TAG, (word)&new->local))
        new->local = 0;
    if (mine)
        mpi.group_free((word)&mine);
    if (all)
        mpi.group_free((word)&all);
    new->offers = malloc((size_t)new->sites * map_bytes());
    return new->local && new->offers && !mpi.set_errhandler(new->local, mpi.errors_return);
}

/* Whether all ranks say yes, which crosses the link once. */
static bool agreed_by_sites(const struct levels *at, bool yes)
{
    unsigned char mine = yes, all = 0, *others = (unsigned char *)at->offers;
    struct flight flight = {0};
    int error = mpi.allreduce((word)&mine, (word)&all, 1, mpi.byte, mpi.bitwise_and, at->local);

    mine = !error && all;
    for (int site = 0; site < at->sites && !at->number; site++) {
        others[site] = mine;
        if (site == at->site)
            continue;
        if (post_message(&flight, mpi.irecv, (word)&others[site], 1, mpi.byte, leader_of(at, site), at->across) ||
            post_message(&flight, mpi.isend, (word)&mine, 1, mpi.byte, leader_of(at, site), at->across))
            error = NO_MEMORY;
    }
    error = end_flight(&flight, error);
    all = mine && !error;
    for (int site = 0; site < at->sites && !at->number; site++)
        all = all && others[site];
    return !mpi.bcast((word)&all, 1, mpi.byte, 0, at->local) && all;
}

void levels_meet(const struct levels *at)
{
    agreed_by_sites(at, true);
}

/* Goes by the map in `map_incoming`, as all ranks do now. A rank that cannot makes all keep theirs. */
static void adopt(struct levels *at)
{
    struct levels new = *at;
    bool done = true;

    map_take(map_incoming);
    at->epoch = new.epoch = map_incoming->epoch;
    new.numbers = at->spare;
    new.spare = at->numbers;
    new.local = 0;
    new.offers = NULL;
    number_sites(&new, map_incoming);
    if (new.sites > 1 && new.sites < new.size) {
        if (!new.across)
            done = make_across(&new);
        done = make_local(&new, at->across ? at->across : at->comm) && done;
        done = at->local ? agreed_by_sites(at, done) : agreed(at->comm, done);
    }
    if (!done) {
        if (new.across && !at->across)
            mpi.comm_free((word)&new.across);
        if (new.local)
            mpi.comm_free((word)&new.local);
        free(new.offers);
        return;
    }
    if (at->local)
        mpi.comm_free((word)&at->local);
    free(at->offers);
    *at = new;
    choices_again(at->choices);
    map_use(at->epoch);
}

/*
 * All ranks go by the newest map that one of them has got, by the library's own collectives. False: one of them is not
 * `usable`. The map itself is sent only where ranks have got different ones.
 */
static bool ask_all(struct levels *at, bool usable, bool first)
{
    const struct map *newest = map_newest();
    uint64_t check = map_check(newest);
    uint64_t mine[] = {newest->epoch << RANK_BITS | (uint64_t)(LAST_RANK - at->rank), check, ~check, !usable};
    uint64_t all[sizeof mine / sizeof *mine];
    bool alike;
    int from;

    if (mpi.allreduce((word)mine, (word)all, sizeof mine / sizeof *mine, mpi.unsigned_long, mpi.maximum, at->comm) ||
        all[3])
        return false;
    if (all[0] >> RANK_BITS <= at->epoch && !first)
        return true;
    alike = all[1] == ~all[2]; /* the highest check is the lowest one */
    from = LAST_RANK - (int)(all[0] & LAST_RANK);
    memcpy(map_incoming, newest, map_bytes());
    if (alike || !mpi.bcast((word)map_incoming, (word)map_bytes(), mpi.byte, (word)from, at->comm))
        adopt(at);
    return true;
}

/* The program's handler of errors is not to learn of ours. */
static word without_handler(word comm)
{
    word usual = 0;

    if (!mpi.get_errhandler(comm, (word)&usual))
        mpi.set_errhandler(comm, mpi.errors_return);
    return usual;
}

static void with_handler(word comm, word usual)
{
    if (!usual)
        return;
    mpi.set_errhandler(comm, handle(usual));
    mpi.errhandler_free((word)&usual);
}

struct levels *levels_learn(word comm, int size, const int *world)
{
    struct levels *new, none = {.comm = comm};
    word usual;
    bool usable;

    if (!is_mapped(size, world) || size < 3) /* of two, none can be at one site and another one elsewhere */
        return NULL;
    usual = without_handler(comm);
    new = calloc(1, sizeof *new);
    if (new) {
        *new = (struct levels){.comm = comm, .size = size, .world = world};
        new->numbers = calloc(numbers_of(size), sizeof(int));
        new->spare = calloc(numbers_of(size), sizeof(int));
        new->choices = choices_new();
        mpi.comm_rank(comm, (word)&new->rank);
    }
    usable = ask_all(new ? new : &none, new && new->numbers && new->spare && new->choices, true);
    with_handler(comm, usual);
    if (usable)
        return new;
    levels_forget(new);
    return NULL;
}

int levels_offer(const struct levels *at, struct flight *flight)
{
    const struct map *mine = map_newest();
    size_t each = map_bytes(), bytes = mine->epoch > at->epoch ? each : sizeof mine->epoch;
    char *offer = at->offers + (size_t)at->site * each;
    int error = 0;

    memcpy(offer, mine, bytes);
    for (int site = 0; site < at->sites && !error; site++) {
        if (site == at->site)
            continue;
        error = post_message(flight, mpi.irecv, (word)(at->offers + (size_t)site * each), (int64_t)each, mpi.byte,
                             leader_of(at, site), at->across);
        if (!error)
            error = post_message(flight, mpi.isend, (word)offer, (int64_t)bytes, mpi.byte, leader_of(at, site),
                                 at->across);
    }
    return error;
}

void levels_judge(struct levels *at)
{
    const struct map *best = NULL;

    for (int site = 0; site < at->sites; site++) {
        const struct map *offer = (const struct map *)(at->offers + (size_t)site * map_bytes());

        if (offer->epoch > (best ? best->epoch : at->epoch))
            best = offer;
    }
    at->news = best ? best->epoch : 0;
    if (best)
        memcpy(map_incoming, best, map_bytes());
}

int levels_share(struct levels *at, word buffer, int64_t count, word type, int64_t bytes)
{
    struct {
        uint64_t news;
        char bytes[SHORT];
    } both;
    bool together = bytes <= SHORT;
    int error = 0;

    both.news = at->number ? 0 : at->news;
    if (together && bytes && !at->number)
        error = bytes_from(both.bytes, buffer, count, type, bytes, at->across);
    if (!error)
        error = mpi.bcast((word)&both, sizeof both.news + (word)(together ? bytes : 0), mpi.byte, 0, at->local);
    if (!error && together && bytes && at->number)
        error = bytes_into(buffer, count, type, both.bytes, bytes, at->across);
    if (!error && !together)
        error = mpi.bcast(buffer, (word)count, type, 0, at->local);
    at->turns = 0;
    if (error || !both.news)
        return error;
    error = mpi.bcast((word)map_incoming, (word)map_bytes(), mpi.byte, 0, at->local);
    if (!error)
        adopt(at);
    return error;
}

int levels_exchange_nothing(struct levels *at)
{
    struct flight flight = {0};
    int error = end_flight(&flight, levels_offer(at, &flight));

    levels_judge(at);
    return error;
}

void levels_weigh(struct levels *at, int64_t bytes)
{
    if (bytes < LARGE)
        at->turns += (unsigned)(bytes / HEAVY);
}

void levels_turn(struct levels *at)
{
    word usual;

    if (++at->turns < (at->local ? TURNS : TURNS_FLAT))
        return;
    at->turns = 0;
    if (!at->local) {
        usual = without_handler(at->comm);
        ask_all(at, true, false);
        with_handler(at->comm, usual);
    } else if (!mpi.barrier(at->local) && (at->number || !levels_exchange_nothing(at))) {
        levels_share(at, 0, 0, mpi.byte, 0); /* the collective itself will have the same error again */
    }
}
