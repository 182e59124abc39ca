/*
 * libwherry-finalize.so: makes MPI_Finalize of MPICH before 4.2 end (LD_PRELOAD; needs no MPI to build).
 *
 * Over UCX on TCP, MPI_Finalize first disconnects every endpoint, which needs answers of the other ranks, and then
 * waits in PMI's barrier, where a rank answers nothing: the last to disconnect hangs for ever (natively too). Here all
 * ranks meet in two barriers before, so that every message has arrived, and then leave without the disconnect; the end
 * of the process closes its connections. Only MPICH is touched: its handles are numbers that are the same in all
 * versions of its ABI; with any other library the calls are passed through. The Fortran binding of MPICH calls the C
 * function, so it is covered, and the module mpi_f08, which does not, has a name of its own. So has dlsym(), as a
 * program that loads MPICH itself (Julia, ctypes, plug-ins) asks the library for its MPI_Finalize, not the process.
 */
#include "lookup.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

enum {
    MPICH_COMM_WORLD = 0x44000000,
    NO_LIBRARY = 15, /* MPICH's MPI_ERR_OTHER: no MPI library is loaded, so nobody can have asked for more */
};

int MPI_Finalize(void);
void mpi_finalize_f08_(int *error);
void *ucp_disconnect_nb(void *endpoint);

static int leaving;
static void *by_hand; /* MPICH as a program loaded it, which need not be among the libraries of the process */

/*
 * Sonames of MPICH: Debian's own, and that of the common ABI (Intel's and Cray's MPI have it too, with their handles).
 */
static int is_mpich(struct dl_phdr_info *object, size_t size, void *unused)
{
    const char *slash = strrchr(object->dlpi_name, '/');
    const char *name = slash ? slash + 1 : object->dlpi_name;

    (void)size;
    (void)unused;
    return strncmp(name, "libmpich.so.12", 14) == 0 || strncmp(name, "libmpi.so.12", 12) == 0;
}

/* UCX: NULL means that the endpoint is closed at once. */
void *ucp_disconnect_nb(void *endpoint)
{
    void *(*disconnect)(void *);

    *(void **)&disconnect =
        function_behind("ucp_disconnect_nb", (void *)(size_t)ucp_disconnect_nb, __builtin_return_address(0));
    return leaving || !disconnect ? NULL : disconnect(endpoint);
}

/* Another preloaded library of Wherry's: it looks for the functions behind its own. */
static int is_ours(const void *caller)
{
    Dl_info info;

    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "/libwherry-");
}

/* Hands out our MPI_Finalize for MPICH's to any program that asks the library for it. */
void *dlsym(void *restrict handle, const char *restrict name)
{
    lookup *real = lookup_of_libc();
    void *ours = (void *)(size_t)MPI_Finalize;

    if (handle != RTLD_NEXT && handle != RTLD_DEFAULT && strcmp(name, "MPI_Finalize") == 0) {
        void *found = real(handle, name);

        if (found && found != ours && !is_ours(__builtin_return_address(0)) && dl_iterate_phdr(is_mpich, NULL)) {
            by_hand = handle;
            return ours;
        }
    }
    return real(handle, name); /* a jump, no call (checked by a test): RTLD_NEXT depends on who called */
}

static void *behind(const char *name, void *own, void *caller)
{
    void *found = function_behind(name, own, caller);

    return found || !by_hand ? found : lookup_of_libc()(by_hand, name);
}

/* Has all ranks of MPICH meet, so that all messages have arrived. */
static void meet(void *own, void *caller)
{
    int (*barrier)(int);

    *(void **)&barrier = behind("PMPI_Barrier", own, caller);
    if (barrier && dl_iterate_phdr(is_mpich, NULL)) {
        barrier(MPICH_COMM_WORLD);
        barrier(MPICH_COMM_WORLD);
        leaving = 1;
    }
}

int MPI_Finalize(void)
{
    void *own = (void *)(size_t)MPI_Finalize, *caller = __builtin_return_address(0);
    int (*finalize)(void);

    *(void **)&finalize = behind("MPI_Finalize", own, caller);
    if (!finalize)
        *(void **)&finalize = behind("PMPI_Finalize", own, caller);
    if (!finalize)
        return NO_LIBRARY;
    meet(own, caller);
    return finalize();
}

/* The module mpi_f08 of MPICH calls PMPI_Finalize. */
void mpi_finalize_f08_(int *error)
{
    void *own = (void *)(size_t)mpi_finalize_f08_, *caller = __builtin_return_address(0);
    void (*finalize)(int *);

    *(void **)&finalize = function_behind("mpi_finalize_f08_", own, caller);
    if (!finalize) {
        if (error)
            *error = NO_LIBRARY;
        return;
    }
    meet(own, caller);
    finalize(error);
}
