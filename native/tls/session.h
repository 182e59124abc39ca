/*
 * A TLS 1.3 session (RFC 8446) of two programs that both have one key, an external pre-shared key, and nothing else: no
 * certificate and no name. Keys of the session come from it and from a Diffie-Hellman exchange of their own, so with a
 * key that leaks later no recorded byte can be read. There is one cipher, no session that is resumed, and no early
 * data: a recorded session cannot be played again.
 */
#ifndef WHERRY_TLS_SESSION_H
#define WHERRY_TLS_SESSION_H

#include <openssl/ssl.h>
#include <wherry/key.h>

enum { SESSION_HANDSHAKE_MS = 30000 };

/* A session on a connected socket, which becomes non-blocking: one end connects, and the other accepts. NULL without. */
SSL *session_new(int socket, const uint8_t key[KEY_SIZE], int accepts);
/* The handshake. 0; -EKEYREJECTED: the other end does not have the key; -ETIMEDOUT; or -ECONNRESET. */
int session_shake(SSL *session);
void session_free(SSL *session);

#endif
