#include "library.h"

#include "used_functions.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A constant that is a number, or the address of a variable of the library. */
struct constant {
    word number;
    const char *variable;
};

/* A family of libraries, whose handles and constants are the same. */
struct family {
    const char *soname; /* begins so */
    bool short_handles, has_own_fortran;
    word in_place, statuses_ignore;
    int combiner_named;
    struct constant world, no_comm, byte, errors_return, bitwise_and, unsigned_long, maximum, no_info;
};

#define MPICH                                                                                                          \
    true, false, (word)-1, 1, 1, {0x44000000, NULL}, {0x04000000, NULL}, {0x4c00010d, NULL}, {0x54000001, NULL},       \
        {0x58000006, NULL}, {0x4c000808, NULL}, {0x58000001, NULL}, { 0x1c000000, NULL }
#define OPEN_MPI                                                                                                       \
    false, true, 1, 0, 0, {0, "ompi_mpi_comm_world"}, {0, "ompi_mpi_comm_null"}, {0, "ompi_mpi_byte"},                 \
        {0, "ompi_mpi_errors_return"}, {0, "ompi_mpi_op_band"}, {0, "ompi_mpi_unsigned_long"},                     \
        {0, "ompi_mpi_op_max"}, { 0, "ompi_mpi_info_null" }
#define STANDARD                                                                                                       \
    false, false, 1, 0, 0, {0x101, NULL}, {0x100, NULL}, {0, NULL}, {0, NULL}, {0, NULL}, {0, NULL}, {0, NULL},     \
        { 0, NULL }

static const struct family families[] = {
    {"libmpich.so.12", MPICH},
    {"libmpi.so.12", MPICH},
    {"libmpi.so.40", OPEN_MPI},
    {"libmpi_abi.so.", STANDARD},
};

enum { FAMILIES = sizeof families / sizeof *families, PATH = 512 };

struct mpi mpi;
static void *found_library; /* never closed */

/* A function to look for among the libraries of the process, and where it was found. */
struct search {
    const struct family *family;
    unsigned found;
    char path[PATH];
    const char *name; /* of a function other than `own` */
    const void *own;
    void *function;
};

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static int look_for_family(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    const char *name = file_name(object->dlpi_name);

    (void)size;
    for (unsigned i = 0; i < FAMILIES; i++) {
        if (strncmp(name, families[i].soname, strlen(families[i].soname)))
            continue;
        search->found++;
        search->family = &families[i];
        snprintf(search->path, sizeof search->path, "%s", object->dlpi_name);
    }
    return 0;
}

static int look_for_function(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    void *library, *function;

    (void)size;
    if (strncmp(file_name(object->dlpi_name), "libmpi", 6))
        return 0;
    library = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD); /* never closed: functions found in it stay valid */
    function = library ? dlsym(library, search->name) : NULL;
    if (function && function != search->own)
        search->function = function;
    return search->function != NULL;
}

void *function_next(const char *const *names, const void *own)
{
    struct search search = {.own = own};
    void *found;

    for (unsigned i = 0; names[i]; i++) {
        found = dlsym(RTLD_NEXT, names[i]);
        if (found && found != own)
            return found;
    }
    for (unsigned i = 0; names[i] && !search.function; i++) {
        search.name = names[i];
        dl_iterate_phdr(look_for_function, &search);
    }
    if (!search.function) { /* the dynamic linker would have printed this, and ended the program so */
        dprintf(STDERR_FILENO, "symbol lookup error: undefined symbol: %s\n", names[0]);
        _exit(127);
    }
    return search.function;
}

struct wanted {
    const char *name;
    void **at;
};

static bool take_functions(void *library, const struct wanted *wanted, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        *wanted[i].at = dlsym(library, wanted[i].name);
        if (!*wanted[i].at)
            return false;
    }
    return true;
}

/* Fortran's MPI_IN_PLACE and MPI_BOTTOM of Open MPI are variables, by any of the names that compilers make. */
static const void *fortran_variable(const char *format)
{
    static const char *const endings[] = {"_", "__", ""};
    const void *found = NULL;
    char name[64];

    for (unsigned i = 0; !found && i < sizeof endings / sizeof *endings; i++) {
        snprintf(name, sizeof name, "%s%s", format, endings[i]);
        found = dlsym(RTLD_DEFAULT, name);
    }
    return found;
}

/* A program that uses a variable of a library may have the only valid copy of it (R_X86_64_COPY): its own comes first. */
static word value(void *library, const struct constant *constant)
{
    void *found;

    if (!constant->variable)
        return constant->number;
    found = dlsym(RTLD_DEFAULT, constant->variable);
    return (word)(found ? found : dlsym(library, constant->variable));
}

word library_object(const char *variable)
{
    return value(found_library, &(struct constant){.variable = variable});
}

#define FUNCTION(name, at) {"PMPI_" #name, (void **)&mpi.at},
#define TAKE(library, table) take_functions(library, table, sizeof table / sizeof *table)

static void find_for_collectives(void *library, const struct family *family)
{
    static const struct wanted functions[] = {FUNCTIONS_OF_COLLECTIVES(FUNCTION)};

    mpi.no_comm = value(library, &family->no_comm);
    mpi.byte = value(library, &family->byte);
    mpi.statuses_ignore = family->statuses_ignore;
    mpi.combiner_named = family->combiner_named;
    mpi.errors_return = value(library, &family->errors_return);
    mpi.bitwise_and = value(library, &family->bitwise_and);
    mpi.unsigned_long = value(library, &family->unsigned_long);
    mpi.maximum = value(library, &family->maximum);
    mpi.collectives = TAKE(library, functions) && mpi.byte && mpi.no_comm && mpi.errors_return && mpi.bitwise_and &&
                      mpi.unsigned_long && mpi.maximum;
}

/* A library whose programs may see a request's end by functions that we do not wrap (MPI 4.1) is none for it. */
static void find_for_direct(void *library, const struct family *family)
{
    static const struct wanted functions[] = {{"PMPI_Ialltoallv", (void **)&mpi.ialltoallv}};
    static const struct wanted translations[] = {{"PMPI_Request_c2f", (void **)&mpi.request_c2f}};

    mpi.direct = mpi.collectives && TAKE(library, functions) && !dlsym(library, "PMPI_Request_get_status_any") &&
                 (!family->has_own_fortran || TAKE(library, translations));
}

static void find_for_shared(void *library, const struct family *family)
{
    static const struct wanted functions[] = {
        FUNCTION(Type_dup, type_dup) FUNCTION(Type_free, type_free) FUNCTION(Get_count, get_count)
        FUNCTION(Status_set_elements, status_set_elements)
    };
    static const struct wanted translations[] = {FUNCTION(Request_f2c, request_f2c) FUNCTION(Type_c2f, type_c2f)};

    mpi.fortran_status_ignore = fortran_variable("mpi_fortran_status_ignore");
    mpi.fortran_statuses_ignore = fortran_variable("mpi_fortran_statuses_ignore");
    mpi.shared = mpi.collectives && TAKE(library, functions) && (!family->has_own_fortran || TAKE(library, translations));
}

static void find_for_placement(void *library, const struct family *family)
{
    static const struct wanted functions[] = {
        FUNCTION(Info_create, info_create) FUNCTION(Info_dup, info_dup) FUNCTION(Info_get, info_get)
        FUNCTION(Info_set, info_set) FUNCTION(Info_free, info_free)
        FUNCTION(Get_library_version, library_version)
    };
    static const struct wanted translations[] = {FUNCTION(Info_f2c, info_f2c) FUNCTION(Info_c2f, info_c2f)};

    mpi.no_info = value(library, &family->no_info);
    mpi.places = mpi.no_info && TAKE(library, functions) && (!family->has_own_fortran || TAKE(library, translations));
}

bool library_find(void)
{
    static const struct wanted functions[] = {FUNCTIONS_OF_ALL(FUNCTION)};
    static const struct wanted translations[] = {
        FUNCTION(Comm_f2c, comm_f2c) FUNCTION(Type_f2c, type_f2c) FUNCTION(Op_f2c, op_f2c)
    };
    struct search search = {0};
    void *library;

    if (mpi.ready)
        return true;
    dl_iterate_phdr(look_for_family, &search);
    library = search.found == 1 ? dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD) : NULL; /* never closed, as above */
    if (!library || !TAKE(library, functions))
        return false;
    if (search.family->has_own_fortran && !TAKE(library, translations))
        return false;
    found_library = library;
    mpi.short_handles = search.family->short_handles;
    mpi.has_own_fortran = search.family->has_own_fortran;
    mpi.in_place = search.family->in_place;
    mpi.world = value(library, &search.family->world);
    mpi.fortran_in_place = fortran_variable("mpi_fortran_in_place");
    mpi.fortran_bottom = fortran_variable("mpi_fortran_bottom");
    find_for_collectives(library, search.family);
    find_for_direct(library, search.family);
    find_for_shared(library, search.family);
    find_for_placement(library, search.family);
    mpi.ready = mpi.world != 0;
    return mpi.ready;
}
