#include "collectives.h"

#include "objects.h"
#include "ordered.h"
#include "sites.h"

#include <limits.h>
#include <stdlib.h>

/* The shares of ranks in reduce_scatter: so many elements, with so many before them in the whole. */
struct shares {
    int *counts, *before, all;
};

/* Ranks of a site that follow one another have shares that do: so many, from the place `i` in the order of sites. */
static int run_of(const struct levels *at, int site, int i)
{
    int end = i + 1;

    while (end < at->begins[site + 1] && at->order[end] == at->order[end - 1] + 1)
        end++;
    return end - i;
}

static int elements_of(const struct shares *shares, int rank, int ranks)
{
    int last = rank + ranks - 1;

    return shares->before[last] + shares->counts[last] - shares->before[rank];
}

/* Sends to the leader of a site its ranks' shares of this site's elements. */
static int send_shares(const struct levels *at, struct flight *flight, const struct shares *shares, word own, int site,
                       word type)
{
    ptrdiff_t extent = extent_of(type);
    int error = 0, run;

    for (int i = at->begins[site]; i < at->begins[site + 1] && !error; i += run) {
        int rank = at->order[i];

        run = run_of(at, site, i);
        error = send_elements(flight, own + (word)(shares->before[rank] * extent), elements_of(shares, rank, run), type,
                              bytes_of(1, type), leader_of(at, site), at->across);
    }
    return error;
}

/* Receives another site's elements for this one's ranks, at the places that they have in the whole. */
static int receive_shares(const struct levels *at, struct flight *flight, const struct shares *shares, word room,
                          int site, word type)
{
    ptrdiff_t extent = extent_of(type);
    int error = 0, run;

    for (int i = at->begins[at->site]; i < at->begins[at->site + 1] && !error; i += run) {
        int rank = at->order[i];

        run = run_of(at, at->site, i);
        error = receive_elements(flight, room + (word)(shares->before[rank] * extent), elements_of(shares, rank, run),
                                 type, bytes_of(1, type), leader_of(at, site), at->across);
    }
    return error;
}

/* The leaders exchange the shares of each other's ranks, and combine them. */
static int exchange_shares(struct levels *at, const struct shares *shares, word own, word type, word operator)
{
    struct room *rooms = sites_rooms(at, shares->all, type);
    struct flight flight = {0};
    int error = rooms ? levels_offer(at, &flight) : NO_MEMORY, run;

    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = receive_shares(at, &flight, shares, rooms[site].at, site, type);
    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = send_shares(at, &flight, shares, own, site, type);
    error = end_flight(&flight, error);
    if (!error)
        levels_judge(at);
    for (int i = at->begins[at->site]; i < at->begins[at->site + 1] && !error; i += run) {
        ptrdiff_t offset = shares->before[at->order[i]] * extent_of(type);

        run = run_of(at, at->site, i);
        error = sites_combine(at, own + (word)offset, rooms, offset, elements_of(shares, at->order[i], run), type,
                              operator);
    }
    sites_free(at, rooms);
    return error;
}

/* Hands out a leader's whole within the site. */
static int scatter_shares(const struct levels *at, const struct shares *shares, word own, word got, word type)
{
    int ranks = ranks_at(at, at->site), first = at->begins[at->site], error;
    int *counts = malloc(sizeof *counts * 2 * (size_t)ranks), *places = counts + ranks;

    if (!counts)
        return NO_MEMORY;
    for (int i = 0; i < ranks; i++) {
        counts[i] = shares->counts[at->order[first + i]];
        places[i] = shares->before[at->order[first + i]];
    }
    error = mpi.scatterv(own, (word)counts, (word)places, type, got, (word)shares->counts[at->rank], type, 0,
                         at->local);
    free(counts);
    return error;
}

static int reduce_scatter(struct levels *at, const struct shares *shares, word sent, word got, word type, word operator)
{
    struct room room = {0};
    int error = 0;

    if (sent == mpi.in_place)
        sent = got;
    if (!at->number && !make_room(&room, shares->all, type))
        error = NO_MEMORY;
    if (!error)
        error = mpi.reduce(sent, room.at, (word)shares->all, type, operator, 0, at->local);
    if (!error && !at->number)
        error = exchange_shares(at, shares, room.at, type, operator);
    if (!error)
        error = scatter_shares(at, shares, room.at, got, type);
    free(room.base);
    return error ? error : levels_share(at, 0, 0, mpi.byte, 0);
}

/* `counts` of all ranks, or `count` of each. */
static bool shared_reduction(int *result, word sent, word got, const int *counts, int count, word type, word operator,
                             word handle)
{
    struct shares shares = {0};
    struct levels *at;
    int64_t all = 0;
    bool done = true;

    if (ordered_wants(type, operator))
        return ordered_reduce_scatter(result, sent, got, counts, count, type, operator, handle);
    at = sites_begin(handle);
    if (!at)
        return false;
    for (int rank = 0; rank < at->size; rank++) {
        int many = counts ? counts[rank] : count;

        if (many < 0)
            return false;
        all += many;
    }
    if (all > INT_MAX || !sites_may_reduce(at, bytes_of(all, type), operator))
        return false;
    sites_count();
    shares.all = (int)all;
    shares.counts = malloc(sizeof *shares.counts * 2 * (size_t)at->size);
    if (!shares.counts)
        return sites_end(at, result, NO_MEMORY);
    shares.before = shares.counts + at->size;
    for (int rank = 0; rank < at->size; rank++) {
        shares.counts[rank] = counts ? counts[rank] : count;
        shares.before[rank] = rank ? shares.before[rank - 1] + shares.counts[rank - 1] : 0;
    }
    done = sites_end(at, result, reduce_scatter(at, &shares, sent, got, type, operator));
    free(shares.counts);
    return done;
}

bool levels_reduce_scatter_block(int *result, word sent, word got, int count, word type, word operator, word handle)
{
    return shared_reduction(result, sent, got, NULL, count, type, operator, handle);
}

bool levels_reduce_scatter(int *result, word sent, word got, word counts, word type, word operator, word handle)
{
    return shared_reduction(result, sent, got, (const int *)counts, 0, type, operator, handle);
}

/* The last rank of a site sends the total of its ranks to the leaders of all later ones. */
static int send_total(const struct levels *at, word total, int count, word type)
{
    struct flight flight = {0};
    int error = 0;

    for (int site = at->site + 1; site < at->sites && !error; site++)
        error = send_elements(&flight, total, count, type, bytes_of(1, type), leader_of(at, site), at->across);
    return end_flight(&flight, error);
}

/* A leader gets the total of all earlier sites, in the memory that it is given. */
static int receive_totals(const struct levels *at, word prefix, int count, word type, word operator)
{
    struct room *rooms = sites_rooms(at, count, type);
    struct flight flight = {0};
    int error = rooms ? 0 : NO_MEMORY;

    for (int site = 0; site < at->site && !error; site++)
        error = receive_elements(&flight, site == at->site - 1 ? prefix : rooms[site].at, count, type,
                                 bytes_of(1, type),
                                 at->order[at->begins[site + 1] - 1], at->across);
    error = end_flight(&flight, error);
    for (int site = at->site - 2; site >= 0 && !error; site--)
        error = mpi.reduce_local(rooms[site].at, prefix, (word)count, type, operator);
    sites_free(at, rooms);
    return error;
}

/*
 * A scan within each site, to whose results the total of all earlier sites is applied. `total` is memory of the last
 * rank of a site that is not the last one, `prefix` of all ranks that are not at the first one.
 */
static int scan(const struct levels *at, word sent, word got, word total, word prefix, int count, word type,
                word operator, bool exclusive)
{
    word input = sent == mpi.in_place ? got : sent;
    int error = 0;

    if (total && exclusive)
        error = copy_elements(input, total, count, type, at->rank, at->across);
    if (!error)
        error = (exclusive ? mpi.exscan : mpi.scan)(sent, got, (word)count, type, operator, at->local);
    if (!error && total && !exclusive)
        error = copy_elements(got, total, count, type, at->rank, at->across);
    if (!error && total && exclusive && at->number)
        error = mpi.reduce_local(got, total, (word)count, type, operator);
    if (!error && total)
        error = send_total(at, total, count, type);
    if (!error && prefix && !at->number)
        error = receive_totals(at, prefix, count, type, operator);
    return error;
}

/* Applies the total of all earlier sites to a rank's result within its site. */
static int apply_prefix(const struct levels *at, word prefix, word got, int count, word type, word operator,
                        bool exclusive)
{
    int error = mpi.bcast(prefix, (word)count, type, 0, at->local);

    if (error)
        return error;
    if (exclusive && !at->number)
        return copy_elements(prefix, got, count, type, at->rank, at->across);
    return mpi.reduce_local(prefix, got, (word)count, type, operator);
}

static bool any_scan(int *result, word sent, word got, int count, word type, word operator, word handle, bool exclusive)
{
    struct room total = {0}, prefix = {0};
    struct levels *at;
    int error = 0;

    if (ordered_wants(type, operator))
        return ordered_scan(result, sent, got, count, type, operator, handle, exclusive);
    at = sites_begin(handle);
    if (!at || !at->in_order || !sites_may_reduce(at, bytes_of(count, type), operator))
        return false;
    levels_weigh(at, bytes_of(count, type));
    sites_count();
    if (at->site + 1 < at->sites && at->number + 1 == ranks_at(at, at->site) && !make_room(&total, count, type))
        error = NO_MEMORY;
    if (at->site && !make_room(&prefix, count, type))
        error = NO_MEMORY;
    if (!error)
        error = scan(at, sent, got, total.base ? total.at : 0, prefix.base ? prefix.at : 0, count, type, operator,
                     exclusive);
    if (!error && prefix.base)
        error = apply_prefix(at, prefix.at, got, count, type, operator, exclusive);
    free(total.base);
    free(prefix.base);
    return sites_end(at, result, error);
}

bool levels_scan(int *result, word sent, word got, int count, word type, word operator, word handle)
{
    return any_scan(result, sent, got, count, type, operator, handle, false);
}

bool levels_exscan(int *result, word sent, word got, int count, word type, word operator, word handle)
{
    return any_scan(result, sent, got, count, type, operator, handle, true);
}
