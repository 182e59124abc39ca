/* Small files, and the one way out when something is missing. */
#ifndef WHERRY_GUEST_UTIL_H
#define WHERRY_GUEST_UTIL_H

enum {
    GUEST_TEXT_MAX = 64 << 10, /* bytes of a file that is read whole: the command line, a list of modules, /etc/hosts */
};

/* Prints on the console the failed step and the reason, and switches the machine off. `error` is positive. */
_Noreturn void guest_fail(const char *what, const char *object, int error);

/* The text of a small file, ended by NUL; NULL with errno when it cannot be read. The caller frees it. */
char *guest_read(const char *path);

/* Writes a small file that may not be there yet. Returns 0 or negative errno. */
int guest_write(const char *path, const char *text);

#endif
