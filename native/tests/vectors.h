/* Test vectors of wherry/wire.h. `size` and `wanted`: the results of wire_parse_frame. */
#ifndef WHERRY_TESTS_VECTORS_H
#define WHERRY_TESTS_VECTORS_H

#include <errno.h>

struct frame_vector {
    const char *hex;
    int size;
    int wanted;
};

#define TAG "000102030405060708090a0b0c0d0e0f"

static const struct frame_vector hello_vectors[] = {
    {"", 0, 5},
    {"4300000021", 0, 38},                 /* C */
    {"4800000041", 0, 70},                 /* H */
    {"4100000020", 0, 37},                 /* A */
    {"460000000179", 6, 6},                /* F "y" */
    {"4800000042", -EMSGSIZE, 5},          /* H, an answer too long */
    {"4300000042", -EMSGSIZE, 5},
    {"4100000021", -EMSGSIZE, 5},
    {"50", -EPROTO, 5},                    /* P and the others are of a session */
    {"5200000000", -EPROTO, 5},
};

/* The same for frames of a session, which have a tag. */
static const struct frame_vector sealed_vectors[] = {
    {"", 0, 5},
    {"50", 0, 5},
    {"5000000000" TAG, 21, 21},                  /* P */
    {"500000000132" TAG, 22, 22},                /* P of one byte */
    {"5000000001" TAG, 0, 22},                   /* one byte missing */
    {"580000000665786974203700" TAG, 27, 27},    /* X of six bytes, and one byte of the next frame */
    {"4900000000" TAG, 21, 21},                  /* I, the end of the input */
    {"4900100000", 0, 0x100015},           /* I of 1 MiB */
    {"4900100001", -EMSGSIZE, 5},
    {"5200400000", 0, 0x400015},           /* R of 4 MiB */
    {"5200400001", -EMSGSIZE, 5},
    {"48", -EPROTO, 5},                    /* H, C and A come before */
    {"43", -EPROTO, 5},
    {"41", -EPROTO, 5},
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
    RUN("1000\0" "100\0" "4,24\0" "/home/u\0" "umask=63,nice=-5,core=0:unlimited\0" "2\0" "ls\0" "-l\0" "PATH=/bin\0" "EMPTY=\0", 0),
    RUN("0\0" "0\0" "\0" "/\0" "\0" "1\0" "sh\0", 0),
    RUN("0\0" "0\0" "\0" "/\0" "\0" "1\0" "sh", -EPROTO),                   /* the last NUL is missing */
    RUN("0\0" "0\0" "\0" "/\0" "\0" "2\0" "sh\0", -EPROTO),                 /* an argument is missing */
    RUN("0\0" "0\0" "\0" "/\0" "\0" "0\0", -EPROTO),                        /* nothing to run */
    RUN("0\0" "0\0" "\0" "/\0" "\0" "1\0" "\0", -EPROTO),                   /* an empty name */
    RUN("0\0" "0\0" "\0" "/\0" "\0" "99999999999999999999\0" "sh\0", -EPROTO),
    RUN("-1\0" "0\0" "\0" "/\0" "\0" "1\0" "sh\0", -EPROTO),
    RUN("4294967295\0" "0\0" "\0" "/\0" "\0" "1\0" "sh\0", -EPROTO),        /* (uid_t)-1: "no change" to the kernel */
    RUN("0\0" "0\0" "4,\0" "/\0" "\0" "1\0" "sh\0", -EPROTO),
    RUN("0\0" "0\0" "4;5\0" "/\0" "\0" "1\0" "sh\0", -EPROTO),
    RUN("0\0" "0\0" "\0" "/\0" "\0" "1\0" "sh\0" "NOVALUE\0", -EPROTO),
    RUN("0\0" "0\0" "\0" "/\0" "\0" "1\0" "sh\0" "=x\0", -EPROTO),
    RUN("0\0" "0\0" "\0" "/\0" "umask=512\0" "1\0" "sh\0", -EPROTO),
    RUN("0\0" "0\0", -EPROTO),
    RUN("", -EPROTO),
};

#endif
