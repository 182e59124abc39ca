/*
 * Spawns in all ways; rank 1 is the root, and the others pass arguments that may not be read. Run with spawn_seen.c
 * preloaded.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    char *commands[] = {"a", "b"}, value[256] = "";
    const int processes[] = {2, 3};
    MPI_Info info, file, both[2];
    MPI_Comm made;
    int rank, found;

    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Info_create(&info);
    MPI_Info_set(info, "host", "a 1,b/1");
    MPI_Info_set(info, "wdir", "/tmp");
    MPI_Info_create(&file);
    MPI_Info_set(file, "hostfile", "/tmp/hosts");
    both[0] = MPI_INFO_NULL;
    both[1] = info;
    MPI_Comm_spawn("a", MPI_ARGV_NULL, 4, MPI_INFO_NULL, 1, MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    MPI_Comm_spawn("a", MPI_ARGV_NULL, 5, info, 1, MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    MPI_Comm_spawn("a", MPI_ARGV_NULL, 6, file, 1, MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    MPI_Comm_spawn_multiple(2, commands, MPI_ARGVS_NULL, rank == 1 ? processes : NULL, rank == 1 ? both : NULL, 1,
                            MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    MPI_Info_get(info, "host", 255, value, &found);
    if (strcmp(value, "a 1,b/1"))
        printf("the program's own info was changed\n");
    MPI_Info_free(&info);
    MPI_Info_free(&file);
    MPI_Finalize();
    return 0;
}
