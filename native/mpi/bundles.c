#include "bundles.h"

#include <limits.h>
#include <stdlib.h>

int64_t bundles_lay_out(const struct levels *at, const struct blocks *blocks, int *lengths, int *places)
{
    int64_t all = 0;

    for (int i = 0; i < at->size; i++) {
        int64_t bytes = length_of(blocks, at->order[i]);

        if (bytes < 0 || bytes > INT_MAX - all)
            return -1;
        lengths[i] = (int)bytes;
        places[i] = (int)all;
        all += bytes;
    }
    places[at->size] = (int)all;
    return all;
}

/* Gathers the bytes of a site's ranks at one of them, whose own are at their place already. */
static int gather_site(const struct levels *at, const struct blocks *blocks, char *all, const int *lengths,
                       const int *places, int own)
{
    int first = at->begins[at->site];
    word mine = at->number ? (word)(all + places[own]) : mpi.in_place;

    if (!blocks->counts)
        return mpi.gather(mine, (word)lengths[own], mpi.byte, (word)(all + places[first]), (word)lengths[first],
                          mpi.byte, 0, at->local);
    /* places are those of all bytes, so `all` begins with the first site */
    return mpi.gatherv(mine, (word)lengths[own], mpi.byte, (word)all, (word)(lengths + first), (word)(places + first),
                       mpi.byte, 0, at->local);
}

/* All leaders exchange the blocks of their sites. */
static int exchange_sites(struct levels *at, const struct blocks *blocks, char *all, const int *lengths,
                          const int *places, int own)
{
    const int *begins = at->begins;
    struct flight flight = {0};
    int error = levels_offer(at, &flight);

    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = receive_plain(&flight, (word)(all + places[begins[site]]),
                                  places[begins[site + 1]] - places[begins[site]], leader_of(at, site), at->across);
    if (!error)
        error = gather_site(at, blocks, all, lengths, places, own);
    for (int site = 0; site < at->sites && !error; site++)
        if (site != at->site)
            error = send_plain(&flight, (word)(all + places[begins[at->site]]),
                               places[begins[at->site + 1]] - places[begins[at->site]], leader_of(at, site),
                               at->across);
    error = end_flight(&flight, error);
    if (!error)
        levels_judge(at);
    return error;
}

int bundles_gather(struct levels *at, word sent, int count, word type, const struct blocks *blocks,
                      const int *lengths, const int *places)
{
    int own = at->begins[at->site] + at->number, error;
    char *all = malloc((size_t)places[at->size]);

    if (!all)
        return NO_MEMORY;
    error = sent == mpi.in_place ? take_block(at, blocks, at->rank, all + places[own])
                                 : bytes_from(all + places[own], sent, count, type, lengths[own], at->across);
    if (!error && at->number)
        error = gather_site(at, blocks, all, lengths, places, own);
    else if (!error)
        error = exchange_sites(at, blocks, all, lengths, places, own);
    if (!error) {
        const int *order = at->order; /* a newer map changes it, which the last words of this collective may bring */
        int *ranks = malloc(sizeof *ranks * (size_t)at->size);

        for (int i = 0; ranks && i < at->size; i++)
            ranks[i] = order[i];
        error = levels_share(at, (word)all, places[at->size], mpi.byte, places[at->size]);
        for (int i = 0; ranks && i < at->size && !error; i++)
            error = put_block(at, blocks, ranks[i], all + places[i]);
        error = ranks ? error : NO_MEMORY;
        free(ranks);
    }
    free(all);
    return error;
}

int bundles_gather_bytes(struct levels *at, const char *mine, char *all, const int *counts, const int *displacements)
{
    struct blocks blocks = blocks_of((word)all, 0, (word)counts, (word)displacements, mpi.byte);
    int *lengths = malloc(sizeof *lengths * (2 * (size_t)at->size + 1)), *places = lengths + at->size, error;

    if (!lengths)
        return NO_MEMORY;
    bundles_lay_out(at, &blocks, lengths, places);
    error = bundles_gather(at, (word)mine, counts[at->rank], mpi.byte, &blocks, lengths, places);
    free(lengths);
    return error;
}
