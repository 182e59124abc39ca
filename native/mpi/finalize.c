/*
 * libwherry-finalize.so: makes MPI_Finalize of MPICH before 4.2 end (LD_PRELOAD; needs no MPI to build).
 *
 * Over UCX on TCP a rank closes its endpoints in MPI_Finalize, and one that was never used is first wired up, which needs
 * an answer of the other rank. When that one waits in PMI's barrier already, it makes no progress and both hang (natively
 * too). So every pair of ranks exchanges a number before, twice, as the answer to the first message completes the wiring,
 * and a barrier lets all begin to finalize together. Only MPICH is touched: its handles are numbers that are the same in
 * all versions of its ABI; with any other library the call is passed through. The Fortran binding of MPICH calls the C
 * function, so it is covered.
 */
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MPICH_COMM_WORLD = 0x44000000, MPICH_INT = 0x4c000405 };

int MPI_Finalize(void);

/* Sonames of MPICH: Debian's own, and that of the common ABI (Intel's and Cray's MPI have it too, with their handles). */
static int is_mpich(struct dl_phdr_info *object, size_t size, void *unused)
{
    const char *slash = strrchr(object->dlpi_name, '/');
    const char *name = slash ? slash + 1 : object->dlpi_name;

    (void)size;
    (void)unused;
    return strncmp(name, "libmpich.so.12", 14) == 0 || strncmp(name, "libmpi.so.12", 12) == 0;
}

static void *find(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Every pair of ranks talks, twice. An error is MPI's own to report: finalizing goes on as it would without us. */
static void wire_up(void)
{
    int (*comm_size)(int, int *) = (int (*)(int, int *))(size_t)find("PMPI_Comm_size");
    int (*barrier)(int) = (int (*)(int))(size_t)find("PMPI_Barrier");
    int (*alltoall)(const void *, int, int, void *, int, int, int) =
        (int (*)(const void *, int, int, void *, int, int, int))(size_t)find("PMPI_Alltoall");
    int ranks = 0, *numbers = NULL;

    if (!comm_size || !barrier || !alltoall || comm_size(MPICH_COMM_WORLD, &ranks) || ranks < 2)
        return;
    numbers = calloc(2 * (size_t)ranks, sizeof *numbers);
    for (int turn = 0; numbers && turn < 2; turn++)
        alltoall(numbers, 1, MPICH_INT, numbers + ranks, 1, MPICH_INT, MPICH_COMM_WORLD);
    free(numbers);
    barrier(MPICH_COMM_WORLD);
}

int MPI_Finalize(void)
{
    int (*finalize)(void) = (int (*)(void))(size_t)dlsym(RTLD_NEXT, "MPI_Finalize");

    if (!finalize)
        finalize = (int (*)(void))(size_t)find("PMPI_Finalize");
    if (!finalize)
        return 15; /* MPICH's MPI_ERR_OTHER: no MPI library is loaded, so nobody can have asked for more */
    if (dl_iterate_phdr(is_mpich, NULL))
        wire_up();
    return finalize();
}
