/* What the parts of wherry-guest share: the machine's description, and the one way out when something is missing. */
#ifndef WHERRY_GUEST_H
#define WHERRY_GUEST_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GUEST_TEXT_MAX = 64 << 10, /* bytes of a file that is read whole: the command line, a list of modules, /etc/hosts */
    GUEST_MAC = 6,
};

/* What the kernel's command line says, and what the guest is given (main.c). The strings live as long as the process. */
struct guest {
    char *name;
    struct in_addr address;
    int prefix;             /* bits of the network's mask */
    uint8_t mac[GUEST_MAC];
    int mtu;                /* bytes */
    bool checksum_offload;  /* the device may compute checksums, and so cut and join segments */
    char *user;             /* as wherry-init takes it */
    char *key;              /* 64 hex digits */
    char *hosts;            /* the text of /etc/hosts */
};

/* Says on the console what could not be done and why, and switches the machine off. `error` is positive. */
_Noreturn void guest_fail(const char *what, const char *object, int error);

/* The text of a small file, ended by NUL; NULL with errno when it cannot be read. The caller frees it. */
char *guest_read(const char *path);

/* Writes a small file that may not be there yet. Returns 0 or negative errno. */
int guest_write(const char *path, const char *text);

#endif
