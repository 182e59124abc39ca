#include "imports.h"

#include "library.h"

#include <link.h>
#include <stddef.h>
#include <string.h>

#if __ELF_NATIVE_CLASS != 64
#error "relocations of 64 bits"
#endif

/* Objects by the begin of their file's name that receive for themselves, or are asked by the program's calls. */
static const char *const own[] = {"libmpi", "libwherry", "libopen-", "mca_", "linux-vdso"};

static bool begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

static bool ends(const char *name, const char *with)
{
    size_t length = strlen(name), most = strlen(with);

    return length >= most && !strcmp(name + length - most, with);
}

static bool receives(const char *name)
{
    return strcasestr(name, "recv") || strcasestr(name, "wait") || strcasestr(name, "test") ||
           strcasestr(name, "probe") || strcasestr(name, "get_status");
}

static bool is_unseen(const char *name)
{
    if (begins(name, "PMPI_") || begins(name, "pmpi_"))
        return receives(name);
    if (begins(name, "mpi_") && receives(name) && !mpi.has_own_fortran && strstr(name, "_f08"))
        return true; /* calls PMPI */
    if (!begins(name, "MPI_") && !begins(name, "mpi_"))
        return false;
    return strcasestr(name, "probe") || strcasestr(name, "mrecv") || strcasestr(name, "isendrecv") ||
           strcasestr(name, "precv") || strcasestr(name, "request_get_status") || (receives(name) && ends(name, "_c"));
}

struct dynamic {
    const ElfW(Sym) *symbols;
    const char *names;
    struct {
        const ElfW(Rela) *at;
        size_t bytes;
    } tables[2];
};

/* Where glibc has not added it, an address in the dynamic section counts from the object's begin. */
static const void *address(const struct dl_phdr_info *object, ElfW(Addr) found)
{
    return (const void *)(found < object->dlpi_addr ? found + object->dlpi_addr : found);
}

static struct dynamic dynamic_of(const struct dl_phdr_info *object, const ElfW(Dyn) *entry)
{
    struct dynamic found = {0};

    for (; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB:
            found.symbols = address(object, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            found.names = address(object, entry->d_un.d_ptr);
            break;
        case DT_RELA:
            found.tables[0].at = address(object, entry->d_un.d_ptr);
            break;
        case DT_RELASZ:
            found.tables[0].bytes = entry->d_un.d_val;
            break;
        case DT_JMPREL:
            found.tables[1].at = address(object, entry->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            found.tables[1].bytes = entry->d_un.d_val;
            break;
        default:
            break;
        }
    return found;
}

static bool object_has_unseen(const struct dl_phdr_info *object, const ElfW(Dyn) *entries)
{
    struct dynamic dynamic = dynamic_of(object, entries);

    for (unsigned i = 0; dynamic.symbols && dynamic.names && i < 2; i++)
        for (size_t k = 0; dynamic.tables[i].at && k < dynamic.tables[i].bytes / sizeof(ElfW(Rela)); k++) {
            const ElfW(Sym) *symbol = &dynamic.symbols[ELF64_R_SYM(dynamic.tables[i].at[k].r_info)];

            if (symbol->st_shndx == SHN_UNDEF && is_unseen(dynamic.names + symbol->st_name))
                return true;
        }
    return false;
}

static int look_at(struct dl_phdr_info *object, size_t size, void *data)
{
    const char *slash = strrchr(object->dlpi_name, '/'), *name = slash ? slash + 1 : object->dlpi_name;

    (void)size;
    (void)data;
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
        if (begins(name, own[i]))
            return 0;
    for (unsigned i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC &&
            object_has_unseen(object, (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr)))
            return 1;
    return 0;
}

bool imports_unseen(void)
{
    return dl_iterate_phdr(look_at, NULL);
}
