/* The machine's description, as the parts of wherry-guest share it. */
#ifndef WHERRY_GUEST_H
#define WHERRY_GUEST_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GUEST_MAC = 6,
};

/*
 * The parameters of the kernel's command line and the files given to the guest (main.c). The strings live as long as the process.
 */
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
    char *files;            /* the user's directories (user_files.h); NULL when none are served */
};

#endif
