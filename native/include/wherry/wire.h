/*
 * The wire between wherry-init (first process of a node) and its clients (wherry-rsh, the daemon).
 *
 * One TCP connection carries frames in both directions; those after the first three are sealed, which adds a tag
 * (wherry/seal.h):
 *
 *      0      1                5                    5 + length
 *      +------+----------------+------------------- - - -+
 *      | type | length (u32 BE)| payload                 |
 *      +------+----------------+------------------- - - -+
 *
 * The init speaks first, and both prove that they know the node's key (wherry/handshake.h):
 *
 *   client                          wherry-init
 *     | <---- C version, nonce         |
 *     | H version, nonce, proof -----> |   wrong proof, or 25 s without one: connection closed
 *     | <---- A proof                  |   or F "reason", in clear: the versions differ. From here on all is sealed
 *     | P ---------------------------> |
 *     | <------------------ P "COUNT" |   ping: live children of the init
 *     | K "PID SIGNAL" --------------> |
 *     | <------------------ P "COUNT" |   or F "reason"
 *     | J job -----------------------> |
 *     | <------------------ P "COUNT" |   killed: processes of the owner's with WHERRY_JOB_ID=job; or F "reason"
 *     | R request -------------------> |   at most one R on a connection
 *     | <-------------------- S "PID" |   the program was exec'ed; or F "reason": nothing was started,
 *     |                               |   as always for another user than the node's (init/owner.h)
 *     | I bytes ---------------------> |   standard input; an empty I ends it
 *     | <------------- O bytes, E bytes |   standard output, standard error
 *     | <------- X "exit N"/"signal N" |   last frame: all output up to the end has been sent before it
 *
 * Request of R: strings, each ended by NUL:
 *
 *   uid | gid | groups (comma-separated, may be empty) | cwd | inherited | argc | argv[0] … argv[argc-1] | NAME=VALUE …
 *
 * with `inherited` as in wherry/inherited.h.
 *
 * Example (hex, before it is sealed), a ping: 50 00000000, its answer with two children: 50 00000001 32.
 * More vectors: tests/vectors.h. A client that closes its connection while its program runs makes the init send
 * SIGHUP to the program's session; processes that the program had left behind after its own end live on.
 */
#ifndef WHERRY_WIRE_H
#define WHERRY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wherry/inherited.h"

enum {
    WIRE_HEADER = 5,              /* bytes before the payload */
    WIRE_TAG = 16,                /* bytes after the payload of a sealed frame */
    WIRE_VERSION = 3,             /* first byte of C and H; no other version is accepted */
    WIRE_KEY = 64,                /* hex digits of a key */
    WIRE_CHALLENGE = 33,          /* bytes in C: version, nonce */
    WIRE_ANSWER = 65,             /* bytes in H: version, nonce, proof */
    WIRE_PROOF = 32,              /* bytes in A */
    WIRE_DATA_MAX = 1 << 20,      /* bytes in one I, O or E */
    WIRE_REQUEST_MAX = 4 << 20,   /* bytes in one R */
    WIRE_TEXT_MAX = 512,          /* bytes in P, K, J, S, F, X */
    WIRE_JOB_MAX = 64,            /* characters of a job's id */
    WIRE_GROUPS_MAX = 1024,       /* supplementary groups in one R */
};

struct wire_frame {
    uint8_t type;
    uint32_t length;
    const uint8_t *payload;
};

/* A parsed R; the strings point into the payload, which must outlive it. argv and envp end with NULL. */
struct wire_run {
    uid_t uid;
    gid_t gid;
    size_t group_count;
    gid_t groups[WIRE_GROUPS_MAX];
    const char *cwd;
    struct inherited inherited;
    char **argv;
    char **envp;
};

/* Writes the five header bytes. */
void wire_put_header(uint8_t *to, uint8_t type, uint32_t length);

/*
 * Looks for one whole frame at the start of `bytes`, sealed or of the types that come before. Returns its size (header
 * and tag included), 0 when more bytes are needed (then *wanted is the size to wait for), -EPROTO for a type that does
 * not belong there, -EMSGSIZE for a length beyond the limit.
 */
ssize_t wire_parse_frame(const uint8_t *bytes, size_t count, bool sealed, struct wire_frame *frame, size_t *wanted);

/* Takes an R payload apart. Returns 0, -EPROTO (malformed) or -ENOMEM. wire_free_run() afterwards in every case. */
int wire_parse_run(const uint8_t *payload, size_t length, struct wire_run *run);
void wire_free_run(struct wire_run *run);

/* Takes a K payload ("PID SIGNAL") apart. Returns 0 or -EPROTO. */
int wire_parse_kill(const uint8_t *payload, size_t length, pid_t *pid, int *signal_number);

/* Takes a J payload apart: the id of a job, of letters, digits and hyphens. Returns 0 or -EPROTO. */
int wire_parse_job(const uint8_t *payload, size_t length, char job[WIRE_JOB_MAX + 1]);

/* Comma-separated gids, may be empty. Returns their count or -EPROTO. */
int wire_parse_groups(const char *text, gid_t *groups, size_t room);

/* 0 when `text` is WIRE_KEY lower- or upper-case hex digits, else -EPROTO. */
int wire_check_key(const char *text, size_t length);

#endif
