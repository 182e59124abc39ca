/*
 * wherry-tls: one connection of a move between two machines, encrypted for programs that know nothing of it.
 *
 *   wherry-tls connect WIRE PLAIN KEY [--compress]     at the source
 *   wherry-tls accept WIRE PLAIN KEY                   at the destination
 *
 * Descriptors: WIRE is the connection, PLAIN one end of a pair of sockets, whose other end programs use as if it were the
 * connection, and KEY a pipe with the 32 bytes that both ends have (session.h). The end of each direction is carried as
 * such; a connection that ends without it is none. It ends when both directions have, or when the connection breaks,
 * regardless of the program that started it.
 *
 * Exit code: 0; 1: something else failed; 2: wrong usage; 3: the connection is lost; 4: the other end does not have the
 * key, or the bytes that came differ from the sent ones. stderr has the reason.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "relay.h"
#include "session.h"

enum { FAILED = 1, WRONG_USAGE = 2, CONNECTION_LOST = 3, UNTRUSTED = 4 };

static int descriptor(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    return *end || end == text || number < 0 || number > 1 << 20 ? -1 : (int)number;
}

static int say(int code, const char *why)
{
    fprintf(stderr, "wherry-tls: %s\n", why);
    return code;
}

static int say_error(int error)
{
    switch (error) {
    case 0:
        return 0;
    case -EKEYREJECTED:
        return say(UNTRUSTED, "the other end does not have the key of this move");
    case -EBADMSG:
        return say(UNTRUSTED, "data was changed, left out or repeated on its way");
    case -ETIMEDOUT:
        return say(CONNECTION_LOST, "the other end is silent");
    case -ECONNRESET:
        return say(CONNECTION_LOST, "the connection is lost");
    case -EPIPE:
        return say(FAILED, "the program at this end has ended before the connection");
    default:
        return say(FAILED, strerror(-error));
    }
}

int main(int argc, char **argv)
{
    int accepts = argc > 1 && !strcmp(argv[1], "accept"), compresses = argc == 6 && !strcmp(argv[5], "--compress");
    int wire, plain, key_from, error;
    uint8_t key[KEY_SIZE];
    SSL *session;

    if ((argc != 5 && !compresses) || (!accepts && strcmp(argv[1], "connect")) || (wire = descriptor(argv[2])) < 0 ||
        (plain = descriptor(argv[3])) < 0 || (key_from = descriptor(argv[4])) < 0)
        return say(WRONG_USAGE, "usage: connect|accept WIRE PLAIN KEY [--compress]");
    signal(SIGPIPE, SIG_IGN);
    if (key_read(key_from, key))
        return say(FAILED, "there is no key");
    session = session_new(wire, key, accepts);
    OPENSSL_cleanse(key, sizeof(key));
    if (!session)
        return say(FAILED, "no session can be made");
    error = session_shake(session);
    if (!error)
        error = relay_run(session, plain, compresses);
    session_free(session);
    return say_error(error);
}
