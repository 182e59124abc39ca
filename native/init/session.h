/*
 * One client's connection and the program that it started.
 *
 *   socket --in--> frames --I--> child.input
 *   socket <-out-- frames <-O/E- child.output[0..1]
 *
 * Either side may go first: a session without a socket still drains its program's pipes (and throws the bytes away),
 * a session whose program ended still flushes its output for the client. It is over when neither is left.
 */
#ifndef WHERRY_INIT_SESSION_H
#define WHERRY_INIT_SESSION_H

#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>

#include "child.h"
#include "owner.h"
#include "wherry/buffer.h"
#include "wherry/handshake.h"

enum { SESSION_POLLS = 5 }; /* socket, verdict, input, output, error output */

/* The key that a client must know, and the user whose programs it may start. */
struct guard {
    uint8_t key[WIRE_KEY];
    struct owner owner;
};

struct session {
    struct session *next;
    const struct guard *guard;
    int socket;
    struct in_addr source;
    uint8_t challenge[WIRE_CHALLENGE];
    struct seals seals;     /* once authenticated */
    bool authenticated;
    bool opened;            /* the frame at the head of `in` is decrypted */
    bool asked;             /* an R came: no second one */
    bool started;           /* S was sent */
    bool exited;            /* the program was reaped, `status` is valid */
    bool counted;           /* `owed` is valid */
    bool closing;           /* the last frame is in `out`; later bytes of the client are thrown away */
    bool blocked;           /* an I frame waits for room in the program's input pipe */
    bool shut;              /* our direction of the socket is closed */
    int status;
    /* loop time in ms: for the answer, for the drain after the exit, for the client's close; 0 none */
    int64_t deadline;
    size_t owed[2];         /* bytes that were in the output pipes when the drain's time was over */
    size_t fed;             /* bytes of the I frame at the head of `in` that the program has taken */
    struct buffer in, out;
    struct child child;
};

extern struct session *session_list;

/* Takes over the socket (non-blocking); the guard outlives the session. Returns NULL without memory or random bytes. */
struct session *session_open(int socket, struct in_addr source, const struct guard *guard, int64_t now);
/* Fills SESSION_POLLS entries. */
void session_prepare(const struct session *session, struct pollfd *polls);
/* Milliseconds until the session wants a step without an event, -1: never. */
int session_wait(const struct session *session, int64_t now);
/* Goes as far as possible without blocking. Returns false when the session is over (then session_free). */
bool session_step(struct session *session, const struct pollfd *polls, int64_t now);
/* The program of this session was reaped. */
void session_exited(struct session *session, int status, int64_t now);
void session_free(struct session *session);

#endif
