/*
 * See progress.h. No MPI is linked: its functions are found by name, and the functions that are asked take the address
 * of an int in every MPI. MPICH needs none of it: its transport over TCP accepts in a thread of its own.
 */
#include "progress.h"

#include <dlfcn.h>
#include <stddef.h>

enum { FUNNELED = 1, MULTIPLE = 3 }; /* of Open MPI's levels of threads */

typedef int (*asks)(int *);
typedef void (*turns)(void);

/* The answer of such a function; `otherwise` where there is none. */
static int told(const char *name, int otherwise)
{
    asks ask = (asks)(size_t)dlsym(RTLD_DEFAULT, name);
    int value = otherwise;

    return ask && ask(&value) == 0 ? value : otherwise;
}

static turns engine(void)
{
    return (turns)(size_t)dlsym(RTLD_DEFAULT, "opal_progress");
}

bool progress_is_ours(void)
{
    int level;

    if (!engine() || !told("PMPI_Initialized", 0) || told("PMPI_Finalized", 1))
        return false;
    level = told("PMPI_Query_thread", -1);
    if (level == MULTIPLE)
        return true;
    return level >= 0 && level <= FUNNELED && told("PMPI_Is_thread_main", 0);
}

void progress_turn(void)
{
    turns turn = engine();

    if (turn)
        turn();
}
