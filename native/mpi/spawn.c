/*
 * MPI_Comm_spawn and MPI_Comm_spawn_multiple: where `wherry run --place-spawned` started the program, the root's info gets
 * the key `host` with the nodes that the daemon names. Arguments that the root does not read, and those of all other
 * ranks, are passed on.
 */
#include "library.h"
#include "placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMMANDS = 4096, VERSION_ROOM = 8192 /* MPI_MAX_LIBRARY_VERSION_STRING of all */ };

static _Thread_local bool within; /* Fortran's function may call the one of C */

/* Keys of MPIs that say which nodes there are, and how processes are mapped to them: they are the program's affair. */
static const char *const places_keys[] = {"hosts", "hostfile", "add-host", "add-hostfile", NULL};
static const char *const mapping_keys[] = {"map_by", "mapper", "PMIX_MAPBY", "ppr", "npernode", "pernode", NULL};

static bool has_any(word info, const char *const *keys)
{
    char value[PLACEMENT_NAMES];
    int found = 0;

    for (; info != mpi.no_info && !found && *keys; keys++)
        mpi.info_get(info, (word)*keys, sizeof value - 1, (word)value, (word)&found);
    return found;
}

/* Of one command: the program's info object, the one to pass, and the nodes that the daemon names. */
struct command {
    word given, own;
    bool is_placed, is_mapped; /* the second: by the program's own keys */
    char hosts[PLACEMENT_NAMES];
};

/*
 * From `ADDRESS:NUMBER,…` to the form that Open MPI wants: its nodes without ranks have no slots, and it counts no
 * others that are named. So an address for each process, in order; or, where that is too long, each once. False for the
 * second.
 */
static bool expand(char *hosts, bool each)
{
    char list[PLACEMENT_ROOM] = "";
    size_t used = 0;

    for (const char *at = hosts; *at; at += strcspn(at, ","), at += *at == ',') {
        int length = (int)strcspn(at, ":,");
        long count = each && at[length] == ':' ? strtol(at + length + 1, NULL, 10) : 1;

        for (; count > 0; count--) {
            if (used + (size_t)length + 2 > sizeof list) {
                if (each)
                    expand(hosts, false);
                return false;
            }
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%.*s", used ? "," : "", length, at);
        }
    }
    memcpy(hosts, list, sizeof list);
    return each;
}

/* The key of Open MPI for how processes are mapped: the one of 4 is deprecated in 5, and 4 does not know the other. */
static const char *mapping_key(void)
{
    char text[VERSION_ROOM] = "";
    int length = 0;

    mpi.library_version((word)text, (word)&length);
    return strncmp(text, "Open MPI v4", 11) ? "PMIX_MAPBY" : "map_by";
}

/* Sets the keys in an info object that is ours. */
static bool set_places(struct command *at)
{
    bool open_mpi = !mpi.short_handles;
    const char *way = open_mpi && expand(at->hosts, !at->is_mapped) ? "seq:OVERSUBSCRIBE" : "node:OVERSUBSCRIBE";

    if (mpi.info_set(at->own, (word) "host", (word)at->hosts))
        return false;
    return !open_mpi || at->is_mapped || !mpi.info_set(at->own, (word)mapping_key(), (word)way);
}

/* Makes `own` of a command that is placed; it stays the program's where that fails. */
static void make_own(struct command *at)
{
    word own = 0;

    if (at->given == mpi.no_info ? mpi.info_create((word)&own) : mpi.info_dup(at->given, (word)&own))
        return;
    at->own = handle(own);
    if (set_places(at))
        return;
    mpi.info_free((word)&own);
    at->own = at->given;
}

/* Asks for the nodes of a command. False when the daemon did not name any. */
static bool ask(struct command *at, int processes)
{
    char host[PLACEMENT_NAMES] = "";
    int found = 0;

    if (at->given != mpi.no_info)
        mpi.info_get(at->given, (word) "host", sizeof host - 1, (word)host, (word)&found);
    at->is_placed = placement_ask(processes, found ? host : "", at->hosts);
    return at->is_placed;
}

/*
 * Several commands are one job: all are placed, or none. Open MPI has one mapping for all of them; MPICH one list, in
 * which it continues, so each gets that of all.
 */
static void join(struct command *commands, int count)
{
    char all[PLACEMENT_NAMES] = "";
    size_t used = 0;
    bool fits = true;

    for (int i = 0; i < count && fits; i++) {
        fits = commands[i].is_placed && !commands[i].is_mapped && used + strlen(commands[i].hosts) + 2 < sizeof all;
        if (fits)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? "," : "", commands[i].hosts);
    }
    for (int i = 0; i < count; i++) {
        commands[i].is_placed = fits;
        if (mpi.short_handles)
            memcpy(commands[i].hosts, all, sizeof all);
    }
}

/* Places all commands of a call, whose `given` is set. A command left to the library has `own` as it was given. */
static void place(struct command *commands, int count, const int *processes)
{
    bool answers = true;

    for (int i = 0; i < count; i++) {
        struct command *at = &commands[i];

        at->own = at->given;
        at->is_mapped = has_any(at->given, mapping_keys);
        if (answers && processes[i] > 0 && !has_any(at->given, places_keys))
            answers = ask(at, processes[i]);
    }
    if (count > 1)
        join(commands, count);
    for (int i = 0; i < count; i++)
        if (commands[i].is_placed)
            make_own(&commands[i]);
}

static void release(struct command *commands, int count)
{
    for (int i = 0; i < count; i++)
        if (commands[i].own != commands[i].given)
            mpi.info_free((word)&commands[i].own);
}

/* MPICH over UCX learnt to spawn in 4.2; before, the call fails wherever it is made. */
static void tell_if_impossible(void)
{
    static bool told;
    char text[VERSION_ROOM] = "";
    int length = 0, major = 0, minor = 0;
    const char *version;

    if (told || mpi.library_version((word)text, (word)&length))
        return;
    told = true;
    version = strstr(text, "MPICH Version:");
    if (version && strstr(text, "ch4:ucx") && sscanf(version, "MPICH Version: %d.%d", &major, &minor) == 2 &&
        (major < 4 || (major == 4 && minor < 2)))
        placement_say("this MPI cannot spawn processes", "MPICH before 4.2 over UCX (ch4:ucx) has not got that; use "
                                                         "MPICH 4.2 or newer, or Open MPI");
}

/* Whether this rank's arguments count, and they are to be changed. */
static bool is_ours(word comm, int root)
{
    int rank = -1;

    if (within || !mpi.ready || !mpi.places || !placement_is_wanted() || mpi.comm_rank(comm, (word)&rank))
        return false;
    if (rank != root)
        return false;
    tell_if_impossible();
    return true;
}

#define NEXT(type, own, ...)                                                                                           \
    static const char *const names[] = {__VA_ARGS__, NULL};                                                            \
    static type next;                                                                                                  \
    if (!next)                                                                                                         \
    *(void **)&next = function_next(names, (void *)(size_t)own)

int MPI_Comm_spawn(word command, word argv, word processes, word info, word root, word comm, word newcomm, word errors);
int MPI_Comm_spawn(word command, word argv, word processes, word info, word root, word comm, word newcomm, word errors)
{
    struct command one = {.given = handle(info)};
    const int count = (int)processes;
    int result;

    NEXT(call8, MPI_Comm_spawn, "MPI_Comm_spawn");
    if (!is_ours(handle(comm), (int)root))
        return next(command, argv, processes, info, root, comm, newcomm, errors);
    place(&one, 1, &count);
    within = true;
    result = next(command, argv, processes, one.own, root, comm, newcomm, errors);
    within = false;
    release(&one, 1);
    return result;
}

static word info_at(word infos, int i)
{
    return mpi.short_handles ? ((const uint32_t *)infos)[i] : ((const word *)infos)[i];
}

int MPI_Comm_spawn_multiple(word count, word commands, word argvs, word processes, word infos, word root, word comm,
                            word newcomm, word errors);
int MPI_Comm_spawn_multiple(word count, word commands, word argvs, word processes, word infos, word root, word comm,
                            word newcomm, word errors)
{
    const int many = (int)count;
    struct command *all = NULL;
    word *array = NULL;
    int result;

    NEXT(call9, MPI_Comm_spawn_multiple, "MPI_Comm_spawn_multiple");
    if (is_ours(handle(comm), (int)root) && many > 0 && many <= MOST_COMMANDS) {
        all = calloc((size_t)many, sizeof *all);
        array = calloc((size_t)many, sizeof *array);
    }
    if (all && array) {
        for (int i = 0; i < many; i++)
            all[i].given = info_at(infos, i);
        place(all, many, (const int *)processes);
        for (int i = 0; i < many; i++)
            if (mpi.short_handles)
                ((uint32_t *)array)[i] = (uint32_t)all[i].own;
            else
                array[i] = all[i].own;
        infos = (word)array;
        within = true;
    }
    result = next(count, commands, argvs, processes, infos, root, comm, newcomm, errors);
    if (all && array) {
        within = false;
        release(all, many);
    }
    free(all);
    free(array);
    return result;
}

/* Fortran: addresses of everything, handles as integers, and behind ierror the lengths of both texts. */

typedef int (*call11)(word, word, word, word, word, word, word, word, word, word, word);

static word comm_in_c(word address)
{
    int number = *(const int *)address;

    return mpi.has_own_fortran ? mpi.comm_f2c(number) : (uint32_t)number;
}

/* As place(), for the integers at `infos`; `own` gets those to pass. NULL without memory. */
static struct command *place_in_fortran(int count, const int *processes, const int *infos, int *own)
{
    struct command *all = calloc((size_t)count, sizeof *all);

    for (int i = 0; all && i < count; i++)
        all[i].given = mpi.has_own_fortran ? mpi.info_f2c(infos[i]) : (uint32_t)infos[i];
    if (all)
        place(all, count, processes);
    for (int i = 0; i < count; i++) {
        bool is_new = all && all[i].own != all[i].given;

        own[i] = !is_new ? infos[i] : mpi.has_own_fortran ? mpi.info_c2f(all[i].own) : (int)all[i].own;
    }
    return all;
}

static int spawn(call11 next, const word *at)
{
    struct command *one = NULL;
    word info = at[3];
    int own, result;

    if (!within && mpi.ready && is_ours(comm_in_c(at[5]), *(const int *)at[4])) {
        one = place_in_fortran(1, (const int *)at[2], (const int *)info, &own);
        info = (word)&own;
        within = true;
    }
    result = next(at[0], at[1], at[2], info, at[4], at[5], at[6], at[7], at[8], at[9], at[10]);
    if (info != at[3])
        within = false;
    if (one)
        release(one, 1);
    free(one);
    return result;
}

static int spawn_multiple(call12 next, const word *at)
{
    const int count = *(const int *)at[0];
    struct command *all = NULL;
    word infos = at[4];
    int *own = NULL, result;

    if (!within && mpi.ready && count > 0 && count <= MOST_COMMANDS && is_ours(comm_in_c(at[6]), *(const int *)at[5]))
        own = calloc((size_t)count, sizeof *own);
    if (own) {
        all = place_in_fortran(count, (const int *)at[3], (const int *)infos, own);
        infos = (word)own;
        within = true;
    }
    result = next(at[0], at[1], at[2], at[3], infos, at[5], at[6], at[7], at[8], at[9], at[10], at[11]);
    if (own)
        within = false;
    if (all)
        release(all, count);
    free(all);
    free(own);
    return result;
}

#define SPAWN(name, ...)                                                                                               \
    int name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k);                  \
    int name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k)                   \
    {                                                                                                                  \
        NEXT(call11, name, __VA_ARGS__);                                                                               \
        return spawn(next, (const word[]){a, b, c, d, e, f, g, h, i, j, k});                                           \
    }
#define SPAWN_MULTIPLE(name, ...)                                                                                      \
    int name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l);          \
    int name(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l)           \
    {                                                                                                                  \
        NEXT(call12, name, __VA_ARGS__);                                                                               \
        return spawn_multiple(next, (const word[]){a, b, c, d, e, f, g, h, i, j, k, l});                               \
    }

SPAWN(mpi_comm_spawn_, "mpi_comm_spawn_", "mpi_comm_spawn__")
SPAWN(mpi_comm_spawn__, "mpi_comm_spawn__", "mpi_comm_spawn_")
SPAWN(mpi_comm_spawn_f08_, "mpi_comm_spawn_f08_")
SPAWN_MULTIPLE(mpi_comm_spawn_multiple_, "mpi_comm_spawn_multiple_", "mpi_comm_spawn_multiple__")
SPAWN_MULTIPLE(mpi_comm_spawn_multiple__, "mpi_comm_spawn_multiple__", "mpi_comm_spawn_multiple_")
SPAWN_MULTIPLE(mpi_comm_spawn_multiple_f08_, "mpi_comm_spawn_multiple_f08_")
