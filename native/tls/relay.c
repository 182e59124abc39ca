/* See relay.h. */
#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "inflow.h"
#include "outflow.h"

struct relay {
    SSL *session;
    int plain;
    short wire_waits, plain_waits; /* to be polled for before anything moves on */
    bool is_busy;                  /* something went on */
    bool is_given, has_told_end;   /* the program has ended its direction; the other end got this end */
    bool has_come, is_ended;       /* the other end has ended its direction; the program got this end */
    struct inflow in;
    struct outflow out;
};

/* After a call of the session that did nothing. 1: its end; 0: it waits; or negative errno. */
static int session_waits(struct relay *relay, int result)
{
    switch (SSL_get_error(relay->session, result)) {
    case SSL_ERROR_WANT_READ:
        relay->wire_waits |= POLLIN;
        return 0;
    case SSL_ERROR_WANT_WRITE:
        relay->wire_waits |= POLLOUT;
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return 1;
    case SSL_ERROR_SSL:
        return ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -ECONNRESET : -EBADMSG;
    default:
        return -ECONNRESET;
    }
}

static int from_wire(struct relay *relay)
{
    int got, error;

    ERR_clear_error();
    if ((got = SSL_read(relay->session, inflow_taken(&relay->in), INFLOW_TAKEN_MAX)) > 0) {
        relay->is_busy = true;
        return inflow_take(&relay->in, (size_t)got) ? -EBADMSG : 0;
    }
    error = session_waits(relay, got);
    relay->has_come = error == 1;
    return error < 0 ? error : 0;
}

static int to_plain(struct relay *relay, const uint8_t *bytes, size_t count)
{
    ssize_t sent = send(relay->plain, bytes, count, MSG_NOSIGNAL);

    if (sent >= 0) {
        relay->is_busy = true;
        return inflow_given(&relay->in, (size_t)sent) ? -EBADMSG : 0;
    }
    if (errno != EAGAIN && errno != EINTR)
        return -EPIPE;
    relay->plain_waits |= POLLOUT;
    return 0;
}

static int carry_in(struct relay *relay)
{
    size_t count;
    const uint8_t *bytes = inflow_ready(&relay->in, &count);
    int error;

    if (!count && !relay->has_come) {
        if ((error = from_wire(relay)))
            return error;
        bytes = inflow_ready(&relay->in, &count);
    }
    if (count)
        return to_plain(relay, bytes, count);
    if (relay->has_come && !relay->is_ended) {
        shutdown(relay->plain, SHUT_WR);
        relay->is_ended = true;
    }
    return 0;
}

static int from_plain(struct relay *relay)
{
    ssize_t got = recv(relay->plain, relay->out.given, OUTFLOW_GIVEN_MAX, 0);

    if (got > 0) {
        relay->is_busy = true;
        return outflow_give(&relay->out, (size_t)got);
    }
    if (!got || errno == ECONNRESET) /* it ended, and left something unread: bytes that it gave before count */
        relay->is_given = true;
    else if (errno == EAGAIN || errno == EINTR)
        relay->plain_waits |= POLLIN;
    else
        return -errno;
    return 0;
}

static int to_wire(struct relay *relay, const uint8_t *bytes, size_t count)
{
    int sent, error;

    ERR_clear_error();
    if ((sent = SSL_write(relay->session, bytes, (int)count)) > 0) {
        relay->is_busy = true;
        return outflow_sent(&relay->out, (size_t)sent);
    }
    error = session_waits(relay, sent);
    return error == 1 ? -ECONNRESET : error;
}

static int tell_end(struct relay *relay)
{
    int told, error;

    ERR_clear_error();
    if ((told = SSL_shutdown(relay->session)) < 0) {
        error = session_waits(relay, told);
        return error == 1 ? -ECONNRESET : error; /* 1: the other end had sent its own end before it went */
    }
    relay->has_told_end = true;
    return 0;
}

static int carry_out(struct relay *relay)
{
    size_t count;
    const uint8_t *bytes = outflow_ready(&relay->out, &count);
    int error;

    if (!count && !relay->is_given) {
        if ((error = from_plain(relay)))
            return error;
        bytes = outflow_ready(&relay->out, &count);
    }
    if (count)
        return to_wire(relay, bytes, count);
    return relay->is_given && !relay->has_told_end ? tell_end(relay) : 0;
}

/* A record that arrives byte by byte wakes it 16 K times in turn without any progress. */
enum { FRUITLESS_MAX = 1 << 17 };

static int run(struct relay *relay)
{
    for (int fruitless = 0; !relay->is_ended || !relay->has_told_end; fruitless++) {
        struct pollfd each[] = {{.fd = SSL_get_fd(relay->session)}, {.fd = relay->plain}};
        int error;

        relay->wire_waits = relay->plain_waits = 0;
        relay->is_busy = false;
        if ((!relay->is_ended && (error = carry_in(relay))) || (!relay->has_told_end && (error = carry_out(relay))))
            return error;
        if (relay->is_busy)
            fruitless = 0;
        if (fruitless > FRUITLESS_MAX) /* a connection that polls as ready and then refuses */
            return -ECONNRESET;
        if (relay->is_busy || (!relay->wire_waits && !relay->plain_waits))
            continue;
        each[0].events = relay->wire_waits;
        each[1].events = relay->plain_waits;
        for (int i = 0; i < 2; i++)
            each[i].fd = each[i].events ? each[i].fd : -1; /* else poll would report its end again and again */
        if (poll(each, 2, -1) < 0 && errno != EINTR)
            return -errno;
    }
    return 0;
}

int relay_run(SSL *session, int plain, int compresses)
{
    static struct relay relay;
    int flags = fcntl(plain, F_GETFL), error;

    relay.session = session;
    relay.plain = plain;
    if (flags < 0 || fcntl(plain, F_SETFL, flags | O_NONBLOCK))
        return -errno;
    error = outflow_open(&relay.out, compresses);
    if (!error)
        error = run(&relay);
    inflow_free(&relay.in);
    outflow_free(&relay.out);
    return error;
}
