/* Test vectors of wherry/wire.h. `size` and `wanted`: what wire_parse_frame says. */
#ifndef WHERRY_TESTS_VECTORS_H
#define WHERRY_TESTS_VECTORS_H

#include <errno.h>

struct frame_vector {
    const char *hex;
    int size;
    int wanted;
};

static const struct frame_vector frame_vectors[] = {
    {"", 0, 5},
    {"50", 0, 5},
    {"5000000000", 5, 5},                  /* P */
    {"500000000132", 6, 6},                /* P "2" */
    {"4b0000000431302039", 9, 9},          /* K "10 9" */
    {"580000000665786974203700", 11, 11},  /* X "exit 7", and one byte of the next frame */
    {"4f00000003616263", 8, 8},            /* O "abc" */
    {"4f0000000361", 0, 8},                /* O, two bytes missing */
    {"4900000000", 5, 5},                  /* I, the end of the input */
    {"4900100000", 0, 0x100005},           /* I of 1 MiB */
    {"4900100001", -EMSGSIZE, 5},
    {"5200400000", 0, 0x400005},           /* R of 4 MiB */
    {"5200400001", -EMSGSIZE, 5},
    {"4800000041", -EMSGSIZE, 5},          /* H, an answer too long */
    {"4300000041", -EMSGSIZE, 5},          /* C, a challenge too long */
    {"4300000040", 0, 69},
    {"50ffffffff", -EMSGSIZE, 5},
    {"00", -EPROTO, 5},
    {"7a00000000", -EPROTO, 5},
};

struct run_vector {
    const char *payload;
    unsigned long length;
    int result;
};

#define RUN(payload, result) {payload, sizeof(payload) - 1, result}

static const struct run_vector run_vectors[] = {
    RUN("1000\0" "100\0" "4,24\0" "/home/u\0" "2\0" "ls\0" "-l\0" "PATH=/bin\0" "EMPTY=\0", 0),
    RUN("0\0" "0\0" "\0" "/\0" "1\0" "sh\0", 0),
    RUN("0\0" "0\0" "\0" "/\0" "1\0" "sh", -EPROTO),                   /* the last NUL is missing */
    RUN("0\0" "0\0" "\0" "/\0" "2\0" "sh\0", -EPROTO),                 /* an argument is missing */
    RUN("0\0" "0\0" "\0" "/\0" "0\0", -EPROTO),                        /* nothing to run */
    RUN("0\0" "0\0" "\0" "/\0" "1\0" "\0", -EPROTO),                   /* an empty name */
    RUN("0\0" "0\0" "\0" "/\0" "99999999999999999999\0" "sh\0", -EPROTO),
    RUN("-1\0" "0\0" "\0" "/\0" "1\0" "sh\0", -EPROTO),
    RUN("4294967295\0" "0\0" "\0" "/\0" "1\0" "sh\0", -EPROTO),        /* (uid_t)-1: "no change" to the kernel */
    RUN("0\0" "0\0" "4,\0" "/\0" "1\0" "sh\0", -EPROTO),
    RUN("0\0" "0\0" "4;5\0" "/\0" "1\0" "sh\0", -EPROTO),
    RUN("0\0" "0\0" "\0" "/\0" "1\0" "sh\0" "NOVALUE\0", -EPROTO),
    RUN("0\0" "0\0" "\0" "/\0" "1\0" "sh\0" "=x\0", -EPROTO),
    RUN("0\0" "0\0", -EPROTO),
    RUN("", -EPROTO),
};

#endif
