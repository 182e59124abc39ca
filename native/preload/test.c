/*
 * The part of libwherry-wait.so that distinguishes a test from a wait: MPI_Test and its kin poll once and return, but
 * their poll looks the same as a poll of MPI_Wait. So these calls are taken by name and mark their thread (testing.h).
 *
 * No mpi.h: handles are int in MPICH and pointers in Open MPI, but the number of arguments is the same in all, and none
 * is floating point, so words are passed through. Fortran's names have one more (ierror), and return nothing.
 * A call by a pointer that dlsym() took from the MPI library itself (ctypes on libmpi.so) does not come through here.
 */
#include "testing.h"

#include "clock.h"
#include "lookup.h"

#include <stdio.h>
#include <unistd.h>

enum {
    NAME = 64,
    WORK = 400, /* ns between two calls; a loop of nothing but a call takes a tenth */
};

_Thread_local bool testing, worked;
static _Thread_local uint64_t left __attribute__((tls_model("initial-exec"))); /* when the last call returned */

typedef uintptr_t word;

/* The function that the caller would have called without us, by its profiling name if there is no other. */
static void *next_function(const char *name, const void *own, const void *caller)
{
    void *found = function_behind(name, own, caller);
    char profiling[NAME];

    if (found)
        return found;
    snprintf(profiling, sizeof profiling, "%c%s", name[0] == 'M' ? 'P' : 'p', name);
    found = function_behind(profiling, own, caller);
    if (!found) { /* the dynamic linker would have printed this, and ended the program so */
        dprintf(STDERR_FILENO, "symbol lookup error: undefined symbol: %s\n", name);
        _exit(127);
    }
    return found;
}

/* A call may be made inside another one (MPICH's Fortran names call C's), so the mark is put back, not taken away. */
#define TEST(name, parameters, arguments)                                                                              \
    int name parameters;                                                                                               \
    int name parameters                                                                                                \
    {                                                                                                                  \
        static int(*next) parameters; /* threads that look for it at once write the same */                            \
        bool outer = testing;                                                                                          \
        int result;                                                                                                    \
                                                                                                                       \
        if (!next)                                                                                                     \
            *(void **)&next = next_function(#name, (void *)(size_t)name, __builtin_return_address(0));                 \
        if (!outer && now() - left > WORK)                                                                             \
            worked = true;                                                                                             \
        testing = true;                                                                                                \
        result = next arguments;                                                                                       \
        testing = outer;                                                                                               \
        if (!outer)                                                                                                    \
            left = now();                                                                                              \
        return result;                                                                                                 \
    }

#define TEST2(name) TEST(name, (word a, word b), (a, b))
#define TEST3(name) TEST(name, (word a, word b, word c), (a, b, c))
#define TEST4(name) TEST(name, (word a, word b, word c, word d), (a, b, c, d))
#define TEST5(name) TEST(name, (word a, word b, word c, word d, word e), (a, b, c, d, e))
#define TEST6(name) TEST(name, (word a, word b, word c, word d, word e, word f), (a, b, c, d, e, f))
#define TEST7(name) TEST(name, (word a, word b, word c, word d, word e, word f, word g), (a, b, c, d, e, f, g))

/* Fortran's names as compilers write them, and the module mpi_f08's. */
#define FORTRAN(TEST, lower, upper) TEST(lower) TEST(lower##_) TEST(lower##__) TEST(lower##_f08_) TEST(upper)

TEST3(MPI_Test)
TEST4(MPI_Testall)
TEST5(MPI_Testany)
TEST5(MPI_Testsome)
TEST5(MPI_Iprobe)
TEST6(MPI_Improbe)
TEST3(MPI_Request_get_status)
TEST2(MPI_Win_test)
TEST3(MPI_Parrived)

FORTRAN(TEST4, mpi_test, MPI_TEST)
FORTRAN(TEST5, mpi_testall, MPI_TESTALL)
FORTRAN(TEST6, mpi_testany, MPI_TESTANY)
FORTRAN(TEST6, mpi_testsome, MPI_TESTSOME)
FORTRAN(TEST6, mpi_iprobe, MPI_IPROBE)
FORTRAN(TEST7, mpi_improbe, MPI_IMPROBE)
FORTRAN(TEST4, mpi_request_get_status, MPI_REQUEST_GET_STATUS)
FORTRAN(TEST3, mpi_win_test, MPI_WIN_TEST)
FORTRAN(TEST4, mpi_parrived, MPI_PARRIVED)
