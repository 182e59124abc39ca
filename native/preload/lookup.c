#include "lookup.h"

#include <dlfcn.h>
#include <stddef.h>

lookup *lookup_of_libc(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}; /* newest, aarch64, x86-64 */
    static lookup *found;

    for (size_t i = 0; !found && i < sizeof versions / sizeof *versions; i++)
        *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return found;
}

void *function_behind(const char *name, const void *own, const void *caller)
{
    void *found = lookup_of_libc()(RTLD_NEXT, name), *library;
    Dl_info info;

    if (found)
        return found;
    if (!dladdr(caller, &info) || !info.dli_fname)
        return NULL;
    library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD); /* never closed: functions found in it stay valid */
    found = library ? lookup_of_libc()(library, name) : NULL;
    return found == own ? NULL : found;
}
