/* lookup: the functions that preloaded ones stand before. */
#ifndef WHERRY_LOOKUP_H
#define WHERRY_LOOKUP_H

typedef void *lookup(void *handle, const char *name);

/* dlsym() of the C library, even if a preloaded library of ours comes before it. */
lookup *lookup_of_libc(void) __attribute__((visibility("hidden")));

/*
 * The function that the caller, an address in its code, would have called if `own` were not there: the next one of the
 * process or, where its library was loaded with RTLD_LOCAL (as Python loads extensions), the one among the libraries of
 * the caller's own. `own` is never found; NULL if there is none.
 */
void *function_behind(const char *name, const void *own, const void *caller) __attribute__((visibility("hidden")));

#endif
