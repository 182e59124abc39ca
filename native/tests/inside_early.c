/*
 * Rank 0 moves its node before any message has been sent, while the others already send it their part of a sum.
 * Prints the result of the move, and the sum.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "wherry.h"

enum { HOSTS = 8 };

int main(int argc, char **argv)
{
    struct wherry_host hosts[HOSTS];
    struct wherry_place place;
    int rank, count = 0, one = 1, sum = 0, result = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        sleep(1);
        result = wherry_where(&place) || wherry_hosts(hosts, HOSTS, &count);
        for (int i = 0; i < count && i < HOSTS; i++)
            if (strcmp(hosts[i].name, place.host) != 0) {
                result = wherry_move(hosts[i].name);
                break;
            }
        printf("move %d %s\n", result, result ? wherry_error() : "");
        fflush(stdout);
    }
    MPI_Reduce(&one, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("sum %d\n", sum);
    MPI_Finalize();
    return result != 0;
}
