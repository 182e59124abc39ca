/*
 * libwherry-finalize.so: makes MPI_Finalize of MPICH before 4.2 end (LD_PRELOAD; needs no MPI to build).
 *
 * Over UCX on TCP a rank that finalizes early closes its endpoints while others still make progress, and those can
 * hang (natively too). A barrier first lets all ranks begin to finalize together. Only MPICH is touched: its handles
 * are numbers that are the same in all versions of its ABI; with any other library the call is passed through. The
 * Fortran binding of MPICH calls the C function, so it is covered.
 */
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

enum { MPICH_COMM_WORLD = 0x44000000 };

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

int MPI_Finalize(void)
{
    int (*barrier)(int) = (int (*)(int))(size_t)dlsym(RTLD_DEFAULT, "PMPI_Barrier");
    int (*finalize)(void) = (int (*)(void))(size_t)dlsym(RTLD_NEXT, "MPI_Finalize");

    if (!finalize)
        finalize = (int (*)(void))(size_t)dlsym(RTLD_DEFAULT, "PMPI_Finalize");
    if (!finalize)
        return 15; /* MPICH's MPI_ERR_OTHER: no MPI library is loaded, so nobody can have asked for more */
    if (barrier && dl_iterate_phdr(is_mpich, NULL))
        barrier(MPICH_COMM_WORLD);
    return finalize();
}
