/* launcher_loads LIBRARY: an MPI program that loads its MPI by itself, as Julia, ctypes and plug-ins do. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

static void *look(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "there is no %s\n", name);
        exit(1);
    }
    return found;
}

int main(int count, char **words)
{
    library = dlopen(count > 1 ? words[1] : "", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#ifdef OPEN_MPI
    MPI_Comm world = look("ompi_mpi_comm_world");
#else
    MPI_Comm world = MPI_COMM_WORLD;
#endif
    int (*init)(int *, char ***) = (int (*)(int *, char ***))look("MPI_Init");
    int (*barrier)(MPI_Comm) = (int (*)(MPI_Comm))look("MPI_Barrier");
    int (*finalize)(void) = (int (*)(void))look("MPI_Finalize");
    init(NULL, NULL);
    for (int turn = 0; turn < 20; turn++)
        barrier(world);
    finalize();
    printf("ended\n");
    return 0;
}
