/* Carries bytes between a program's socket and a session, in both directions, each until its own end. */
#ifndef WHERRY_TLS_RELAY_H
#define WHERRY_TLS_RELAY_H

#include <openssl/ssl.h>

/*
 * `plain` is a connected socket, which becomes non-blocking; bytes read from it are compressed if it shall be. 0 when
 * both directions have ended as their sender meant; -EBADMSG: the bytes that came differ from the sent ones; -EPIPE:
 * the program here does not take them; -ECONNRESET: the connection has ended before that; another negative errno.
 */
int relay_run(SSL *session, int plain, int compresses);

#endif
