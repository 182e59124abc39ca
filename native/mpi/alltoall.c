#include "collectives.h"

#include "blocks.h"
#include "sites.h"

bool levels_alltoall(int *result, word sent, int count, word type, word got, int got_count, word got_type, word handle)
{
    const struct levels *at = sites_begin(handle);
    struct blocks from, into;

    if (!at || at->size > MOST_PARTNERS || bytes_of(got_count, got_type) <= 0)
        return false;
    if (!sites_choose(at, ALLTOALL, bytes_of(got_count, got_type)))
        return false;
    into = blocks_of(got, got_count, 0, 0, got_type);
    if (sent != mpi.in_place)
        from = blocks_of(sent, count, 0, 0, type);
    return sites_end(at, result, exchange_blocks(at, sent == mpi.in_place ? NULL : &from, &into));
}

bool levels_alltoallv(int *result, word sent, word counts, word displacements, word type, word got, word got_counts,
                      word got_displacements, word got_type, word handle)
{
    const struct levels *at = sites_begin(handle);
    struct blocks from, into;

    if (!at || at->size > MOST_PARTNERS)
        return false;
    into = blocks_of(got, 0, got_counts, got_displacements, got_type);
    if (sent != mpi.in_place)
        from = blocks_of(sent, 0, counts, displacements, type);
    sites_count();
    return sites_end(at, result, exchange_blocks(at, sent == mpi.in_place ? NULL : &from, &into));
}
