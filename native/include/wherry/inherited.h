/*
 * The settings that a program inherits from the command that starts it, beside its environment: file mode mask, nice
 * value and resource limits. As text, in any order, each at most once, empty when there are none:
 *
 *   umask=N,nice=N,LIMIT=SOFT:HARD,…      umask 0 to 511, nice -20 to 19; LIMIT one of those of inherited.c;
 *                                         SOFT and HARD in the units of setrlimit(2), or "unlimited"
 */
#ifndef WHERRY_INHERITED_H
#define WHERRY_INHERITED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { INHERITED_LIMITS = 8 };

struct inherited {
    mode_t umask; /* 022 when it is not given */
    bool has_nice;
    int nice;
    size_t limit_count;
    struct {
        int resource;
        struct rlimit limit;
    } limits[INHERITED_LIMITS];
};

/* Takes the text apart. A pure function. Returns 0 or -EPROTO. */
int inherited_parse(const char *text, struct inherited *inherited);
/*
 * Gives it to this process, before it becomes the user whom the program belongs to. Limits that are wider than this
 * process may set become as wide as it may; a nice value below its own is left out where the kernel refuses it.
 */
void inherited_apply(const struct inherited *inherited);

#endif
