/*
 * A program that moves itself: it sums in steps, and between them rank 0 moves first its own node, then that of the last
 * rank, to the usable host with the most free memory. It reports to Wherry how much is left. Elsewhere it only sums.
 *
 *   mpicc -O2 -o move_self examples/move_self.c $(wherry inside c)
 *   wherry run hello -n 4 -- ./move_self
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "wherry.h"

enum { STEPS = 30, HOSTS = 64 };

/* The host with the most free memory, other than where `place` is. */
static const struct wherry_host *choose(const struct wherry_host *hosts, int count, const struct wherry_place *place)
{
    const struct wherry_host *best = NULL;

    for (int i = 0; i < count && i < HOSTS; i++)
        if (hosts[i].usable && strcmp(hosts[i].name, place->host) != 0 &&
            (!best || hosts[i].free_memory > best->free_memory))
            best = &hosts[i];
    return best;
}

static void move_rank(int rank)
{
    static struct wherry_host hosts[HOSTS];
    const struct wherry_host *best;
    struct wherry_place before, after;
    int count = 0;

    if (wherry_where_rank(rank, &before) != WHERRY_OK || wherry_hosts(hosts, HOSTS, &count) != WHERRY_OK) {
        printf("rank %d does not know where it is: %s\n", rank, wherry_error());
        return;
    }
    best = choose(hosts, count, &before);
    if (!best)
        printf("rank %d stays on %s: no other host is usable\n", rank, before.host);
    else if (wherry_move_rank(rank, best->name) != WHERRY_OK)
        printf("rank %d stays on %s: %s\n", rank, before.host, wherry_error());
    else if (wherry_where_rank(rank, &after) == WHERRY_OK)
        printf("rank %d moved from %s to %s\n", rank, before.host, after.host);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    long total = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0)
        printf(wherry_active() ? "under Wherry\n" : "not under Wherry\n");
    for (int step = 0; step < STEPS; step++) {
        long mine = (long)(rank + 1) * (step + 1), sum = 0;

        if (rank == 0 && wherry_active() && step == STEPS / 3)
            move_rank(0);
        if (rank == 0 && wherry_active() && step == 2 * STEPS / 3)
            move_rank(ranks - 1);
        if (rank == 0)
            wherry_iterations_left(STEPS - step);
        usleep(20000);
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        total += sum;
    }
    if (rank == 0)
        printf("sum %ld\n", total);
    MPI_Finalize();
    return total == (long)ranks * (ranks + 1) / 2 * STEPS * (STEPS + 1) / 2 ? 0 : 1;
}
