#include "shards.h"

#include "objects.h"

#include <limits.h>
#include <stdlib.h>

enum { LEAST = 256 * 1024 }; /* bytes of which a site's ranks take a share each */

/* Shares of a cut buffer, for each rank of a site: elements of them, and how many are before. */
struct shares {
    int *counts, *before;
};

bool shards_fit(const struct levels *at, int64_t elements, int64_t bytes)
{
    for (int site = 1; site < at->sites; site++)
        if (ranks_at(at, site) != ranks_at(at, 0))
            return false;
    return bytes >= LEAST && elements >= ranks_at(at, 0) && ranks_at(at, 0) > 1;
}

static bool cut(const struct levels *at, int elements, struct shares *shares)
{
    int ranks = ranks_at(at, at->site);

    shares->counts = malloc(sizeof *shares->counts * 2 * (size_t)ranks);
    if (!shares->counts)
        return false;
    shares->before = shares->counts + ranks;
    for (int i = 0; i < ranks; i++) {
        shares->before[i] = (int)((int64_t)elements * i / ranks);
        shares->counts[i] = (int)((int64_t)elements * (i + 1) / ranks) - shares->before[i];
    }
    return true;
}

static int peer_at(const struct levels *at, int site)
{
    return at->order[at->begins[site] + at->number];
}

/* The link's part: each rank's share from its peer at the root's site. */
static int pass_shares(const struct levels *at, const struct shares *shares, char *all, int root)
{
    word mine = (word)(all + shares->before[at->number]);
    int bytes = shares->counts[at->number], error = 0;
    struct flight flight = {0};

    if (at->site != at->site_of[root])
        error = receive_plain(&flight, mine, bytes, peer_at(at, at->site_of[root]), at->across);
    for (int site = 0; site < at->sites && at->site == at->site_of[root] && !error; site++)
        if (site != at->site)
            error = send_plain(&flight, mine, bytes, peer_at(at, site), at->across);
    return end_flight(&flight, error);
}

int shards_bcast(const struct levels *at, word buffer, int64_t count, word type, int64_t bytes, int root)
{
    bool plain = is_plain(type, bytes / count);
    char *all = plain ? (char *)buffer : malloc((size_t)bytes);
    struct shares shares = {0};
    int error = all && cut(at, (int)bytes, &shares) ? 0 : NO_MEMORY;

    if (!error && !plain && at->rank == root)
        error = bytes_from(all, buffer, count, type, bytes, at->across);
    if (!error && at->site == at->site_of[root])
        error = mpi.scatterv((word)all, (word)shares.counts, (word)shares.before, mpi.byte,
                             at->rank == root ? mpi.in_place : (word)(all + shares.before[at->number]),
                             (word)shares.counts[at->number], mpi.byte, (word)at->number_of[root], at->local);
    if (!error)
        error = pass_shares(at, &shares, all, root);
    if (!error)
        error = mpi.allgatherv(mpi.in_place, 0, mpi.byte, (word)all, (word)shares.counts, (word)shares.before, mpi.byte,
                               at->local);
    if (!error && !plain && at->rank != root)
        error = bytes_into(buffer, count, type, all, bytes, at->across);
    if (!plain)
        free(all);
    free(shares.counts);
    return error;
}

/* Combines the share of this rank with those of its peers; leaders have offers. */
static int combine_share(struct levels *at, word own, int64_t count, word type, word operator)
{
    struct room *rooms = sites_rooms(at, count, type);
    int64_t size = bytes_of(1, type);
    struct flight flight = {0};
    int error = rooms ? 0 : NO_MEMORY;

    if (!error && !at->number)
        error = levels_offer(at, &flight);
    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = receive_elements(&flight, rooms[site].at, count, type, size, peer_at(at, site), at->across);
    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = send_elements(&flight, own, count, type, size, peer_at(at, site), at->across);
    error = end_flight(&flight, error);
    if (!error && !at->number)
        levels_judge(at);
    if (!error)
        error = sites_combine(at, own, rooms, 0, count, type, operator);
    sites_free(at, rooms);
    return error;
}

int shards_allreduce(struct levels *at, word sent, word got, int64_t count, word type, word operator)
{
    struct shares shares = {0};
    struct room room = {0};
    int error = cut(at, (int)count, &shares) ? 0 : NO_MEMORY, mine = error ? 0 : shares.counts[at->number];

    if (!error && !make_room(&room, mine, type))
        error = NO_MEMORY;
    if (!error)
        error = mpi.reduce_scatter(sent == mpi.in_place ? got : sent, room.at, (word)shares.counts, type, operator,
                                   at->local);
    if (!error)
        error = combine_share(at, room.at, mine, type, operator);
    if (!error)
        error = mpi.allgatherv(room.at, (word)mine, type, got, (word)shares.counts, (word)shares.before, type,
                               at->local);
    free(room.base);
    free(shares.counts);
    return error ? error : levels_share(at, 0, 0, mpi.byte, 0);
}
