#include "collectives.h"

#include "objects.h"
#include "ordered.h"
#include "shards.h"

#include <limits.h>
#include <stdlib.h>

bool levels_barrier(int *result, word handle)
{
    struct levels *at = sites_begin(handle);
    int error;

    if (!at)
        return false;
    sites_count();
    error = mpi.barrier(at->local);
    if (!error && !at->number)
        error = levels_exchange_nothing(at);
    return sites_end(at, result, error ? error : levels_share(at, 0, 0, mpi.byte, 0));
}

/* The root's part between sites: to the leader of each other one, while its own is served. */
static int bcast_from_root(const struct levels *at, word buffer, int64_t count, word type, int64_t bytes)
{
    struct flight flight = {0};
    int error = 0;

    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = send_bytes(&flight, buffer, count, type, bytes, leader_of(at, site), at->across);
    if (!error)
        error = mpi.bcast(buffer, (word)count, type, (word)at->number, at->local);
    return end_flight(&flight, error);
}

bool levels_bcast(int *result, word buffer, int64_t count, word type, int root, word handle)
{
    struct levels *at = sites_begin_rooted(handle, root);
    struct flight flight = {0};
    int64_t bytes;
    bool in_shares;
    int error = 0;

    if (!at)
        return false;
    bytes = bytes_of(count, type);
    if (!bytes || bytes > INT_MAX || !sites_choose(at, BCAST, bytes))
        return false;
    in_shares = shards_fit(at, bytes, bytes);
    levels_weigh(at, in_shares ? bytes / ranks_at(at, 0) : bytes);
    if (in_shares)
        return sites_end(at, result, shards_bcast(at, buffer, count, type, bytes, root));
    if (at->rank == root)
        return sites_end(at, result, bcast_from_root(at, buffer, count, type, bytes));
    if (at->site != at->site_of[root] && !at->number)
        error = end_flight(&flight, receive_bytes(&flight, buffer, count, type, bytes, root, at->across));
    if (!error)
        error = mpi.bcast(buffer, (word)count, type,
                          (word)(at->site == at->site_of[root] ? at->number_of[root] : 0), at->local);
    return sites_end(at, result, error);
}

/*
 * Gets the parts of the leaders of all other sites, and combines them with `own`. With `to_all` each leader does so at
 * once, in the same order: all have the same, to the last bit.
 */
static int combine_sites(struct levels *at, word own, int64_t count, word type, word operator, bool to_all)
{
    struct room *rooms = sites_rooms(at, count, type);
    int64_t size = bytes_of(1, type);
    struct flight flight = {0};
    int error = rooms ? 0 : NO_MEMORY;

    if (!error && to_all)
        error = levels_offer(at, &flight);
    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = receive_elements(&flight, rooms[site].at, count, type, size, leader_of(at, site), at->across);
    for (int site = 0; to_all && site < at->sites && !error; site++)
        if (site != at->site)
            error = send_elements(&flight, own, count, type, size, leader_of(at, site), at->across);
    error = end_flight(&flight, error);
    if (!error && to_all)
        levels_judge(at);
    if (!error)
        error = sites_combine(at, own, rooms, 0, count, type, operator);
    sites_free(at, rooms);
    return error;
}

/* A leader's part at a site that is not the root's: gets its ranks' parts together, and sends them. */
static int reduce_to_root(const struct levels *at, word sent, int64_t count, word type, word operator, int root)
{
    struct flight flight = {0};
    struct room room = {0};
    int error = make_room(&room, count, type) ? 0 : NO_MEMORY;

    if (!error)
        error = mpi.reduce(sent, room.at, (word)count, type, operator, 0, at->local);
    if (!error)
        error = send_elements(&flight, room.at, count, type, bytes_of(1, type), root, at->across);
    error = end_flight(&flight, error);
    free(room.base);
    return error;
}

bool levels_reduce(int *result, word sent, word got, int64_t count, word type, word operator, int root, word handle)
{
    struct levels *at;
    int error;

    if (ordered_wants(type, operator))
        return ordered_reduce(result, sent, got, count, type, operator, root, handle);
    at = sites_begin_rooted(handle, root);
    if (!at || !sites_may_reduce(at, bytes_of(count, type), operator))
        return false;
    levels_weigh(at, bytes_of(count, type));
    sites_count();
    if (at->site != at->site_of[root] && !at->number)
        return sites_end(at, result, reduce_to_root(at, sent, count, type, operator, root));
    error = mpi.reduce(sent, got, (word)count, type, operator,
                       (word)(at->site == at->site_of[root] ? at->number_of[root] : 0), at->local);
    if (!error && at->rank == root)
        error = combine_sites(at, got, count, type, operator, false);
    return sites_end(at, result, error);
}

bool levels_allreduce(int *result, word sent, word got, int64_t count, word type, word operator, word handle)
{
    bool in_place = sent == mpi.in_place;
    int64_t bytes = bytes_of(count, type);
    struct levels *at;
    int error;

    if (ordered_wants(type, operator))
        return ordered_allreduce(result, sent, got, count, type, operator, handle);
    at = sites_begin(handle);
    if (!at || !sites_may_reduce(at, bytes, operator))
        return false;
    sites_count();
    if (shards_fit(at, count, bytes))
        return sites_end(at, result, shards_allreduce(at, sent, got, count, type, operator));
    error = mpi.reduce(in_place && at->number ? got : sent, got, (word)count, type, operator, 0, at->local);
    if (!error && !at->number)
        error = combine_sites(at, got, count, type, operator, true);
    if (!error)
        error = levels_share(at, got, count, type, bytes);
    return sites_end(at, result, error);
}
