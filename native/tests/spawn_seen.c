/* Stands behind libwherry-mpi.so in place of the library's spawning: prints what the root was passed, and spawns nothing. */
#include <mpi.h>
#include <stdio.h>

static void seen(const char *what, int processes, MPI_Info info)
{
    char host[1024] = "-", wdir[1024] = "-";
    int found = 0;

    if (info != MPI_INFO_NULL) {
        PMPI_Info_get(info, "host", sizeof host - 1, host, &found);
        PMPI_Info_get(info, "wdir", sizeof wdir - 1, wdir, &found);
    }
    printf("%s %d host=%s wdir=%s\n", what, processes, host, wdir);
    fflush(stdout);
}

static int is_root(MPI_Comm comm, int root)
{
    int rank;

    PMPI_Comm_rank(comm, &rank);
    return rank == root;
}

int PMPI_Comm_spawn(const char *command, char *argv[], int processes, MPI_Info info, int root, MPI_Comm comm,
                    MPI_Comm *newcomm, int errors[])
{
    (void)command, (void)argv, (void)errors;
    if (is_root(comm, root))
        seen("one", processes, info);
    *newcomm = MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int PMPI_Comm_spawn_multiple(int count, char *commands[], char **argvs[], const int processes[], const MPI_Info infos[],
                             int root, MPI_Comm comm, MPI_Comm *newcomm, int errors[])
{
    (void)commands, (void)argvs, (void)errors;
    for (int i = 0; is_root(comm, root) && i < count; i++)
        seen("many", processes[i], infos[i]);
    *newcomm = MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int MPI_Comm_spawn(const char *command, char *argv[], int processes, MPI_Info info, int root, MPI_Comm comm,
                   MPI_Comm *newcomm, int errors[]) __attribute__((alias("PMPI_Comm_spawn")));
int MPI_Comm_spawn_multiple(int count, char *commands[], char **argvs[], const int processes[], const MPI_Info infos[],
                            int root, MPI_Comm comm, MPI_Comm *newcomm, int errors[])
    __attribute__((alias("PMPI_Comm_spawn_multiple")));
