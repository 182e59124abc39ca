/* See session.h. */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#define CIPHER "TLS_AES_256_GCM_SHA384"

static const unsigned char IDENTITY[] = "wherry";
static const unsigned char CIPHER_ID[] = {0x13, 0x02};
static SSL_SESSION *shared; /* the key: a program has one session */

static int use_key(SSL *session, const EVP_MD *hash, const unsigned char **identity, size_t *length, SSL_SESSION **key)
{
    (void)session;
    (void)hash; /* there is one cipher, and so one hash */
    *identity = IDENTITY;
    *length = sizeof(IDENTITY) - 1;
    *key = SSL_SESSION_up_ref(shared) == 1 ? shared : NULL;
    return !!*key;
}

static int find_key(SSL *session, const unsigned char *identity, size_t length, SSL_SESSION **key)
{
    int is_known = length == sizeof(IDENTITY) - 1 && !memcmp(identity, IDENTITY, length);

    (void)session;
    *key = is_known && SSL_SESSION_up_ref(shared) == 1 ? shared : NULL;
    return 1;
}

static int set_key(SSL *session, const uint8_t key[KEY_SIZE])
{
    const SSL_CIPHER *cipher = SSL_CIPHER_find(session, CIPHER_ID);

    shared = SSL_SESSION_new();
    return shared && cipher && SSL_SESSION_set1_master_key(shared, key, KEY_SIZE) == 1 &&
           SSL_SESSION_set_cipher(shared, cipher) == 1 && SSL_SESSION_set_protocol_version(shared, TLS1_3_VERSION) == 1;
}

static SSL_CTX *context_new(int accepts)
{
    SSL_CTX *context = SSL_CTX_new(accepts ? TLS_server_method() : TLS_client_method());

    if (!context)
        return NULL;
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, CIPHER) != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE);
    if (accepts) {
        SSL_CTX_set_psk_find_session_callback(context, find_key); /* it has no certificate to offer instead */
    } else {
        SSL_CTX_set_psk_use_session_callback(context, use_key);
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL); /* and takes none: nobody's is trusted */
    }
    return context;
}

SSL *session_new(int socket, const uint8_t key[KEY_SIZE], int accepts)
{
    SSL_CTX *context = context_new(accepts);
    SSL *session = context ? SSL_new(context) : NULL;
    int flags = fcntl(socket, F_GETFL);

    SSL_CTX_free(context);
    if (!session)
        return NULL;
    if (!set_key(session, key) || SSL_set_fd(session, socket) != 1 || flags < 0 ||
        fcntl(socket, F_SETFL, flags | O_NONBLOCK)) {
        session_free(session);
        return NULL;
    }
    if (accepts)
        SSL_set_accept_state(session);
    else
        SSL_set_connect_state(session);
    return session;
}

void session_free(SSL *session)
{
    SSL_free(session);
    SSL_SESSION_free(shared);
    shared = NULL;
}

static long long milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

int session_shake(SSL *session)
{
    long long until = milliseconds() + SESSION_HANDSHAKE_MS;

    for (;;) {
        int done, error;
        long long left = until - milliseconds();
        struct pollfd wire = {.fd = SSL_get_fd(session)};

        ERR_clear_error();
        if ((done = SSL_do_handshake(session)) == 1)
            return SSL_session_reused(session) ? 0 : -EKEYREJECTED;
        error = SSL_get_error(session, done);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            return error == SSL_ERROR_SSL && ERR_GET_REASON(ERR_peek_error()) != SSL_R_UNEXPECTED_EOF_WHILE_READING
                       ? -EKEYREJECTED
                       : -ECONNRESET;
        if (left <= 0)
            return -ETIMEDOUT;
        wire.events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        if (poll(&wire, 1, (int)left) < 0 && errno != EINTR)
            return -errno;
    }
}
