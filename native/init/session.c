/*
 * The protocol of wherry/wire.h, server side. Invariants: no byte of the program is lost while its client lives (a pipe
 * is read only while `out` has room), nothing grows without bound, and nothing here blocks.
 */
#include "session.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sweep.h"
#include "wherry/process.h"

enum {
    ANSWER_MS = 25000,    /* the client's proof is due by then; it may wait for a processor, or a move */
    DRAIN_MS = 200,       /* a daemonised descendant may keep the pipes open for ever */
    LINGER_MS = 10000,    /* for the client's own close after the last frame */
    OUT_SIZE = 256 << 10, /* bytes queued for one client */
    FRAME_MORE = WIRE_HEADER + WIRE_TAG, /* bytes of a sealed frame beside its payload */
    OUT_SPARE = 4 * (FRAME_MORE + WIRE_TEXT_MAX), /* of these kept for frames other than O and E */
    CHUNK_MIN = 4096,     /* do not cut output into smaller frames for lack of room */
    CHUNK_MAX = 64 << 10,
};

struct session *session_list;

void session_free(struct session *session)
{
    struct session **at = &session_list;

    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    child_close(&session->socket);
    child_close(&session->child.verdict);
    child_close(&session->child.input);
    child_close(&session->child.output[0]);
    child_close(&session->child.output[1]);
    buffer_free(&session->in);
    buffer_free(&session->out);
    free(session);
}

static size_t out_room(const struct session *session)
{
    return OUT_SIZE - session->out.count;
}

/* Room for output of the program, header and tag included; room for small frames only counts as none. */
static size_t output_room(const struct session *session)
{
    size_t room = out_room(session);

    return room < OUT_SPARE + FRAME_MORE + CHUNK_MIN ? 0 : room - OUT_SPARE;
}

/* The client is gone or refused: its running program gets SIGHUP; an ended program needs nothing. */
static void drop_client(struct session *session)
{
    if (session->socket < 0)
        return;
    child_close(&session->socket);
    child_close(&session->child.input);
    session->in.count = session->out.count = 0;
    if (session->child.pid)
        child_signal_session(session->child.pid, SIGHUP);
}

/* In clear until the client has proved itself, sealed from then on. */
static void send_frame(struct session *session, uint8_t type, const void *payload, size_t length)
{
    ssize_t size = (ssize_t)(WIRE_HEADER + length);
    uint8_t *frame;

    if (session->socket < 0 || buffer_reserve(&session->out, WIRE_HEADER + length + WIRE_TAG) < 0)
        return;
    frame = buffer_tail(&session->out);
    if (length)
        memcpy(frame + WIRE_HEADER, payload, length);
    if (session->authenticated)
        size = seal_close(&session->seals.to_client, frame, type, (uint32_t)length);
    else
        wire_put_header(frame, type, (uint32_t)length);
    if (size < 0)
        drop_client(session);
    else
        session->out.count += (size_t)size;
}

static void send_text(struct session *session, uint8_t type, const char *text)
{
    send_frame(session, type, text, strlen(text));
}

static void send_number(struct session *session, uint8_t type, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    send_text(session, type, text);
}

static void send_last(struct session *session, uint8_t type, const char *text, int64_t now)
{
    send_text(session, type, text);
    session->closing = true;
    session->deadline = now + LINGER_MS;
}

struct session *session_open(int socket, struct in_addr source, const struct guard *guard, int64_t now)
{
    struct session *session = calloc(1, sizeof *session);

    if (!session)
        return NULL;
    if (handshake_challenge(session->challenge) < 0) {
        free(session);
        return NULL;
    }
    session->socket = socket;
    session->source = source;
    session->guard = guard;
    session->deadline = now + ANSWER_MS;
    session->child = CHILD_NONE;
    session->next = session_list;
    session_list = session;
    send_frame(session, 'C', session->challenge, WIRE_CHALLENGE);
    return session;
}

static bool start_program(struct session *session, const struct wire_frame *frame, int64_t now)
{
    static struct wire_run run; /* too large for the stack; one at a time */
    char text[128];
    int error;

    if (session->asked)
        return false;
    session->asked = true;
    error = wire_parse_run(frame->payload, frame->length, &run);
    if (error == 0)
        error = owner_allows(&session->guard->owner, &run) ? child_start(&run, &session->child) : -EPERM;
    wire_free_run(&run);
    if (error == -EPERM)
        snprintf(text, sizeof text, "this node runs programs of its cluster's user only: uid %u",
                 session->guard->owner.uid);
    else if (error < 0)
        snprintf(text, sizeof text, "cannot start the program: %s", strerror(-error));
    if (error < 0)
        send_last(session, 'F', text, now);
    return true;
}

/* Only a program of this init that has not been reaped: its number cannot mean another process by now. */
static bool signal_program(struct session *session, const struct wire_frame *frame)
{
    int number;
    pid_t pid;

    if (wire_parse_kill(frame->payload, frame->length, &pid, &number) < 0)
        return false;
    for (const struct session *other = session_list; other; other = other->next)
        if (other->child.pid == pid) {
            child_signal_session(pid, number);
            send_number(session, 'P', child_count());
            return true;
        }
    send_text(session, 'F', "no such program on this node");
    return true;
}

static bool sweep(struct session *session, const struct wire_frame *frame)
{
    char job[WIRE_JOB_MAX + 1], text[128];
    int killed;

    if (wire_parse_job(frame->payload, frame->length, job) < 0)
        return false;
    killed = sweep_job(job, &session->guard->owner);
    if (killed < 0)
        snprintf(text, sizeof text, "cannot look for processes of %s: %s", job, strerror(-killed));
    if (killed < 0)
        send_text(session, 'F', text);
    else
        send_number(session, 'P', killed);
    return true;
}

/* Returns false while the program's input pipe is full. */
static bool feed_program(struct session *session, const struct wire_frame *frame)
{
    int input = session->child.input;

    while (input >= 0 && session->fed < frame->length) {
        ssize_t count = write(input, frame->payload + session->fed, frame->length - session->fed);

        session->blocked = count < 0 && errno == EAGAIN;
        if (session->blocked)
            return false;
        if (count < 0 && errno != EINTR)
            break;
        session->fed += count > 0 ? (size_t)count : 0;
    }
    if (frame->length == 0 || session->fed < frame->length)
        child_close(&session->child.input); /* the end, or the program closed it: later bytes have no reader */
    session->fed = 0;
    return true;
}

/* The client's proof. Memory for output is only for clients with a right proof. */
static bool admit(struct session *session, const struct wire_frame *frame, int64_t now)
{
    uint8_t proof[WIRE_PROOF];
    char text[64];
    int error = handshake_check(session->guard->key, session->challenge, frame, proof, &session->seals);

    if (error == -EPROTONOSUPPORT) {
        snprintf(text, sizeof text, "the node's agent speaks version %d of its protocol only", WIRE_VERSION);
        send_last(session, 'F', text, now);
        return true;
    }
    if (error < 0 || buffer_reserve(&session->out, OUT_SIZE) < 0)
        return false;
    send_frame(session, 'A', proof, sizeof proof);
    session->authenticated = true;
    session->deadline = 0;
    return true;
}

/* Returns false for a frame that the protocol does not allow here. */
static bool obey_frame(struct session *session, const struct wire_frame *frame, int64_t now)
{
    if (!session->authenticated)
        return admit(session, frame, now);
    switch (frame->type) {
    case 'P':
        send_number(session, 'P', child_count());
        return true;
    case 'K':
        return signal_program(session, frame);
    case 'J':
        return sweep(session, frame);
    case 'R':
        return start_program(session, frame, now);
    default:
        return false;
    }
}

/*
 * The frame at the head of `in`, as of wire_parse_frame(), decrypted; -EBADMSG for a frame that the client did not
 * seal.
 */
static ssize_t next_frame(struct session *session, struct wire_frame *frame)
{
    uint8_t *head = buffer_head(&session->in);
    size_t wanted;
    ssize_t size = wire_parse_frame(head, session->in.count, session->authenticated, frame, &wanted);

    if (size > 0 && session->authenticated && !session->opened) {
        int error = seal_open(&session->seals.to_agent, head, frame->length);

        if (error < 0)
            return error;
        session->opened = true;
    }
    return size;
}

static void obey_frames(struct session *session, int64_t now)
{
    while (session->socket >= 0 && !session->closing && out_room(session) >= OUT_SPARE) {
        struct wire_frame frame;
        ssize_t size = next_frame(session, &frame);

        if (size == 0 && (session->authenticated || session->in.count == 0 || *buffer_head(&session->in) == 'H'))
            return;
        if (size > 0 && frame.type == 'I' && session->asked) {
            if (!feed_program(session, &frame))
                return;
        } else if (size <= 0 || !obey_frame(session, &frame, now)) {
            drop_client(session);
            return;
        }
        buffer_consume(&session->in, (size_t)size);
        session->opened = false;
    }
}

/* How many more bytes of the client the session can use now: up to the end of the frame that has begun. */
static size_t in_room(const struct session *session)
{
    struct wire_frame frame;
    size_t wanted;

    if (session->closing)
        return CHUNK_MIN;
    if (wire_parse_frame(buffer_head(&session->in), session->in.count, session->authenticated, &frame, &wanted))
        return 0;
    return wanted - session->in.count;
}

static void read_client(struct session *session)
{
    size_t room;

    while (session->socket >= 0 && (room = in_room(session)) > 0) {
        ssize_t count;

        if (buffer_reserve(&session->in, room) < 0) {
            drop_client(session);
            return;
        }
        count = recv(session->socket, buffer_tail(&session->in), room, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (count <= 0) {
            drop_client(session);
            return;
        }
        if (session->closing)
            return; /* thrown away; a client that sends without end must not keep the loop here */
        session->in.count += (size_t)count;
    }
}

static void write_client(struct session *session)
{
    while (session->socket >= 0 && session->out.count) {
        ssize_t count = send(session->socket, buffer_head(&session->out), session->out.count, MSG_NOSIGNAL);

        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (count < 0) {
            drop_client(session);
            return;
        }
        buffer_consume(&session->out, (size_t)count);
    }
    if (session->closing && session->socket >= 0 && !session->shut) {
        /* Closing at once would send a reset when input is still on its way, and the reset would overtake the X. */
        shutdown(session->socket, SHUT_WR);
        session->shut = true;
    }
}

static void read_verdict(struct session *session, int64_t now)
{
    char text[WIRE_TEXT_MAX + 1];
    ssize_t count;

    if (session->child.verdict < 0)
        return;
    count = read(session->child.verdict, text, sizeof text - 1);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    child_close(&session->child.verdict);
    if (count > 0) {
        text[count] = 0;
        send_last(session, 'F', text, now);
    } else {
        send_number(session, 'S', session->child.pid);
        session->started = true;
        if (session->socket < 0 && session->child.pid) /* the client left before there was a session to signal */
            child_signal_session(session->child.pid, SIGHUP);
    }
}

/* Moves output of one pipe to the client, as far as `out` has room. */
static void read_output(struct session *session, int which)
{
    static uint8_t scratch[CHUNK_MAX];
    int *pipe = &session->child.output[which];
    bool discard = session->socket < 0 || session->closing;

    while (*pipe >= 0 && session->child.verdict < 0) {
        size_t room = discard ? CHUNK_MAX : output_room(session);
        ssize_t count;

        if (room == 0)
            return;
        count = read(*pipe, scratch, room > CHUNK_MAX ? CHUNK_MAX - FRAME_MORE : room - FRAME_MORE);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (count <= 0) {
            child_close(pipe);
            return;
        }
        session->owed[which] -= (size_t)count < session->owed[which] ? (size_t)count : session->owed[which];
        if (!discard)
            send_frame(session, which == 0 ? 'O' : 'E', scratch, (size_t)count);
        else
            return; /* an endless writer must not keep the loop here */
    }
}

/* Sends X when the program has ended and its output is through. */
static void report_end(struct session *session, int64_t now)
{
    const int *pipes = session->child.output;
    char text[32];

    if (!session->exited || !session->started || session->closing)
        return;
    if (pipes[0] >= 0 || pipes[1] >= 0) {
        if (now < session->deadline)
            return;
        for (int i = 0; i < 2 && !session->counted; i++) {
            int count = 0;

            if (pipes[i] >= 0 && ioctl(pipes[i], FIONREAD, &count) == 0)
                session->owed[i] = (size_t)count;
        }
        session->counted = true;
        if ((pipes[0] >= 0 && session->owed[0]) || (pipes[1] >= 0 && session->owed[1]))
            return;
    }
    process_describe_status(session->status, text, sizeof text);
    send_last(session, 'X', text, now);
}

void session_exited(struct session *session, int status, int64_t now)
{
    session->exited = true;
    session->status = status;
    session->child.pid = 0;
    if (!session->closing)
        session->deadline = now + DRAIN_MS;
}

void session_prepare(const struct session *session, struct pollfd *polls)
{
    bool room = session->socket < 0 || session->closing || output_room(session);
    bool begun = session->child.verdict < 0;

    polls[0] = (struct pollfd){.fd = session->socket, .events = POLLRDHUP};
    if (in_room(session))
        polls[0].events |= POLLIN;
    if (session->out.count)
        polls[0].events |= POLLOUT;
    polls[1] = (struct pollfd){.fd = session->child.verdict, .events = POLLIN};
    polls[2] = (struct pollfd){.fd = session->blocked ? session->child.input : -1, .events = POLLOUT};
    polls[3] = (struct pollfd){.fd = room && begun ? session->child.output[0] : -1, .events = POLLIN};
    polls[4] = (struct pollfd){.fd = room && begun ? session->child.output[1] : -1, .events = POLLIN};
}

int session_wait(const struct session *session, int64_t now)
{
    return session->deadline > now ? (int)(session->deadline - now) : -1;
}

bool session_step(struct session *session, const struct pollfd *polls, int64_t now)
{
    if (polls[0].revents)
        read_client(session);
    obey_frames(session, now);
    if (session->socket >= 0 && polls[0].revents & (POLLRDHUP | POLLHUP | POLLERR) && in_room(session) == 0)
        drop_client(session); /* it closed while its input waits for the program: nobody is left to want the result */
    read_verdict(session, now);
    if (polls[3].revents || session->exited)
        read_output(session, 0);
    if (polls[4].revents || session->exited)
        read_output(session, 1);
    report_end(session, now);
    write_client(session);
    if (session->socket >= 0 && session->deadline && now >= session->deadline &&
        (!session->authenticated || session->shut))
        drop_client(session);
    return session->socket >= 0 || session->child.pid || session->child.output[0] >= 0 ||
           session->child.output[1] >= 0;
}
