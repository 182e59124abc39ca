#include "collectives.h"

#include "bundles.h"
#include "sites.h"

#include <limits.h>
#include <stdlib.h>

enum { BUNDLE = 16 * 1024 }; /* bytes of a rank, to which a site's ranks are served by its leader */

/* With counts of each rank, or one for all. */
static bool all_gather(int *result, word sent, int count, word type, const struct blocks *blocks, struct levels *at)
{
    int *lengths = malloc(sizeof *lengths * (2 * (size_t)at->size + 1)), *places = lengths + at->size;
    int64_t all;
    bool done = true;

    if (!lengths)
        return sites_end(at, result, NO_MEMORY);
    all = bundles_lay_out(at, blocks, lengths, places);
    if (all > 0 && sites_choose(at, ALLGATHER, all / at->size))
        sites_end(at, result, bundles_gather(at, sent, count, type, blocks, lengths, places));
    else
        done = false;
    free(lengths);
    return done;
}

bool levels_allgather(int *result, word sent, int count, word type, word got, int got_count, word got_type, word handle)
{
    struct levels *at = sites_begin(handle);
    struct blocks blocks;

    if (!at || got_count <= 0)
        return false;
    blocks = blocks_of(got, got_count, 0, 0, got_type);
    return all_gather(result, sent, count, type, &blocks, at);
}

bool levels_allgatherv(int *result, word sent, int count, word type, word got, word counts, word displacements,
                       word got_type, word handle)
{
    struct levels *at = sites_begin(handle);
    struct blocks blocks;

    if (!at)
        return false;
    blocks = blocks_of(got, 0, counts, displacements, got_type);
    return all_gather(result, sent, count, type, &blocks, at);
}

/* The root's part of a gather in bundles, each of so many bytes of each rank of a site. */
static int gather_bundles(const struct levels *at, word sent, int count, word type, const struct blocks *blocks,
                          int64_t bytes)
{
    char *all = malloc((size_t)(bytes * at->size)), *site_at, *own;
    struct flight flight = {0};
    int error = all ? 0 : NO_MEMORY;

    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = receive_plain(&flight, (word)(all + at->begins[site] * bytes), ranks_at(at, site) * bytes,
                                  leader_of(at, site), at->across);
    site_at = all + at->begins[at->site] * bytes;
    own = site_at + at->number * bytes;
    if (!error)
        error = sent == mpi.in_place ? take_block(at, blocks, at->rank, own)
                                     : bytes_from(own, sent, count, type, bytes, at->across);
    if (!error)
        error = mpi.gather(mpi.in_place, (word)bytes, mpi.byte, (word)site_at, (word)bytes, mpi.byte, (word)at->number,
                           at->local);
    error = end_flight(&flight, error);
    for (int i = 0; i < at->size && !error; i++)
        error = put_block(at, blocks, at->order[i], all + i * bytes);
    free(all);
    return error;
}

/* The others' part: to the root if it is here, or to the leader, which sends all that it has. */
static int gather_to(const struct levels *at, word sent, int count, word type, int64_t bytes, int root)
{
    bool is_here = at->site == at->site_of[root], leads = !is_here && !at->number;
    int64_t most = leads ? ranks_at(at, at->site) * bytes : bytes;
    char *mine = malloc((size_t)most);
    struct flight flight = {0};
    int error = mine ? bytes_from(mine, sent, count, type, bytes, at->across) : NO_MEMORY;

    if (!error)
        error = mpi.gather(leads ? mpi.in_place : (word)mine, (word)bytes, mpi.byte, (word)mine, (word)bytes, mpi.byte,
                           (word)(is_here ? at->number_of[root] : 0), at->local);
    if (!error && leads)
        error = send_plain(&flight, (word)mine, most, root, at->across);
    error = end_flight(&flight, error);
    free(mine);
    return error;
}

/* Bundles of a site's ranks are one message, and blocks are each rank's. */
static void weigh(struct levels *at, int64_t bytes)
{
    if (bytes > BUNDLE)
        levels_weigh(at, bytes);
    else
        for (int site = 0; site < at->sites; site++)
            levels_weigh(at, ranks_at(at, site) * bytes);
}

bool levels_gather(int *result, word sent, int count, word type, word got, int got_count, word got_type, int root,
                   word handle)
{
    struct levels *at = sites_begin_rooted(handle, root);
    struct blocks blocks = {0};
    int64_t bytes;

    if (!at)
        return false;
    if (at->rank == root)
        blocks = blocks_of(got, got_count, 0, 0, got_type);
    bytes = at->rank == root ? length_of(&blocks, root) : bytes_of(count, type);
    if (bytes <= 0 || bytes > INT_MAX / at->size || !sites_choose(at, GATHER, bytes))
        return false;
    weigh(at, bytes);
    if (bytes > BUNDLE)
        return sites_end(at, result, gather_blocks(at, sent, count, type, &blocks, root));
    if (at->rank == root)
        return sites_end(at, result, gather_bundles(at, sent, count, type, &blocks, bytes));
    return sites_end(at, result, gather_to(at, sent, count, type, bytes, root));
}

bool levels_gatherv(int *result, word sent, int count, word type, word got, word counts, word displacements,
                    word got_type, int root, word handle)
{
    const struct levels *at = sites_begin_rooted(handle, root);
    struct blocks blocks = {0};

    if (!at)
        return false;
    if (at->rank == root)
        blocks = blocks_of(got, 0, counts, displacements, got_type);
    sites_count();
    return sites_end(at, result, gather_blocks(at, sent, count, type, &blocks, root));
}

static int scatter_directly(const struct levels *at, const struct blocks *blocks, word got, int count, word type,
                            int root)
{
    struct flight flight = {0};
    int error = 0;

    if (got != mpi.in_place)
        error = receive_bytes(&flight, got, count, type, bytes_of(count, type), root, at->across);
    for (int rank = 0; rank < at->size && at->rank == root && !error; rank++)
        if (rank != root || got != mpi.in_place)
            error = send_block(&flight, blocks, rank, at->across);
    return end_flight(&flight, error);
}

static int scatter_bundles(const struct levels *at, const struct blocks *blocks, word got, int count, word type,
                           int64_t bytes)
{
    char *all = malloc((size_t)(bytes * at->size)), *site_at, *own;
    struct flight flight = {0};
    int error = all ? 0 : NO_MEMORY;

    for (int i = 0; i < at->size && !error; i++)
        error = take_block(at, blocks, at->order[i], all + i * bytes);
    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = send_plain(&flight, (word)(all + at->begins[site] * bytes), ranks_at(at, site) * bytes,
                               leader_of(at, site), at->across);
    site_at = all + at->begins[at->site] * bytes;
    own = site_at + at->number * bytes;
    if (!error)
        error = mpi.scatter((word)site_at, (word)bytes, mpi.byte, mpi.in_place, (word)bytes, mpi.byte, (word)at->number,
                            at->local);
    if (!error && got != mpi.in_place)
        error = bytes_into(got, count, type, own, bytes, at->across);
    error = end_flight(&flight, error);
    free(all);
    return error;
}

static int scatter_from(const struct levels *at, word got, int count, word type, int64_t bytes, int root)
{
    bool is_here = at->site == at->site_of[root], leads = !is_here && !at->number;
    int64_t most = leads ? ranks_at(at, at->site) * bytes : bytes;
    char *mine = malloc((size_t)most);
    struct flight flight = {0};
    int error = mine ? 0 : NO_MEMORY;

    if (!error && leads)
        error = receive_plain(&flight, (word)mine, most, root, at->across);
    error = end_flight(&flight, error);
    if (!error)
        error = mpi.scatter((word)mine, (word)bytes, mpi.byte, leads ? mpi.in_place : (word)mine, (word)bytes, mpi.byte,
                            (word)(is_here ? at->number_of[root] : 0), at->local);
    if (!error)
        error = bytes_into(got, count, type, mine, bytes, at->across);
    free(mine);
    return error;
}

bool levels_scatter(int *result, word sent, int sent_count, word sent_type, word got, int count, word type, int root,
                    word handle)
{
    struct levels *at = sites_begin_rooted(handle, root);
    struct blocks blocks = {0};
    int64_t bytes;

    if (!at)
        return false;
    if (at->rank == root)
        blocks = blocks_of(sent, sent_count, 0, 0, sent_type);
    bytes = at->rank == root ? length_of(&blocks, root) : bytes_of(count, type);
    if (bytes <= 0 || bytes > INT_MAX / at->size || !sites_choose(at, SCATTER, bytes))
        return false;
    weigh(at, bytes);
    if (bytes > BUNDLE)
        return sites_end(at, result, scatter_directly(at, &blocks, got, count, type, root));
    if (at->rank == root)
        return sites_end(at, result, scatter_bundles(at, &blocks, got, count, type, bytes));
    return sites_end(at, result, scatter_from(at, got, count, type, bytes, root));
}

bool levels_scatterv(int *result, word sent, word counts, word displacements, word sent_type, word got, int count,
                     word type, int root, word handle)
{
    const struct levels *at = sites_begin_rooted(handle, root);
    struct blocks blocks = {0};

    if (!at)
        return false;
    if (at->rank == root)
        blocks = blocks_of(sent, 0, counts, displacements, sent_type);
    sites_count();
    return sites_end(at, result, scatter_directly(at, &blocks, got, count, type, root));
}
