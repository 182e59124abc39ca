/*
 * The kernel calls about messages, and the operations that run beside the program.
 *
 * An operation is a record in the process's endpoint. It advances when it is started, when a thread waits for one, and
 * when the tile's bell rings, always under the tile's lock and never while the process is frozen; so it moves with
 * the rest of the endpoint, and the tile that has the process continues it. Operations of one stream (the same kind,
 * process, port and ticket) advance in the order of their starts, and a direct call to send or receive waits behind
 * them.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "message_calls.h"
#include "scheduler.h"

static void ring(struct tile *tile, uint32_t process)
{
    if (process == CONSOLE_PROCESS)
        eventfd_write(tile->event_fd, 1);
    else
        shared_ring_process(tile->shared, process);
}

static struct operation *operations_of(const struct tile *tile)
{
    return tile->shared->endpoints[tile->process].operations;
}

static bool is_same_stream(const struct operation *one, const struct operation *other)
{
    return one->kind == other->kind && one->process == other->process && one->port == other->port &&
           one->ticket == other->ticket;
}

/* Whether an operation of the same stream was started before and is not done. */
static bool has_older(const struct tile *tile, const struct operation *operation)
{
    const struct operation *all = operations_of(tile);

    for (int i = 0; i < OPERATION_MAX; i++)
        if (all[i].state == OPERATION_PENDING && is_same_stream(&all[i], operation) &&
            (int32_t)(all[i].turn - operation->turn) < 0)
            return true;
    return false;
}

static bool has_pending(const struct tile *tile, uint8_t kind, uint32_t process, uint64_t port)
{
    struct operation mine = {.kind = kind, .process = process, .port = (uint16_t)port};

    mine.turn = tile->shared->endpoints[tile->process].turn;
    return has_older(tile, &mine);
}

static int64_t receive_mail(struct tile *tile, const struct operation *operation)
{
    struct mail mail;

    if (!mailbox_receive(tile->shared, tile->process, operation->port, &mail))
        return -EAGAIN;
    if (mail.size > operation->size)
        mail.size = (uint32_t)operation->size;
    memcpy(tile->image + operation->offset, mail.bytes, mail.size);
    return (int64_t)((uint64_t)mail.from << 32 | mail.size);
}

/* One try. Returns the bytes that it moved (a receive of mail: and the sender), -EAGAIN, or another error. */
static int64_t advance(struct tile *tile, struct operation *operation)
{
    uint8_t *bytes = tile->image + operation->offset + operation->done;
    uint64_t left = operation->size - operation->done;
    int64_t result;

    switch (operation->kind) {
    case START_MAIL_SEND:
        result = mailbox_put(tile->shared, operation->process, operation->port, tile->process, bytes, (uint32_t)left);
        if (result == 0)
            ring(tile, operation->process);
        return result < 0 ? result : (int64_t)left;
    case START_MAIL_RECEIVE:
        return receive_mail(tile, operation);
    case START_PORTAL_SEND:
        return portal_put(tile->shared, operation->process, operation->port, tile->process, operation->ticket, bytes,
                          left);
    default:
        result = portal_take(tile->shared, tile->process, operation->port, bytes, left);
        return result ? result : -EAGAIN;
    }
}

/* Returns whether the operation is done now. */
static bool try_operation(struct tile *tile, struct operation *operation)
{
    int64_t result;

    if (operation->state != OPERATION_PENDING || has_older(tile, operation))
        return false;
    result = advance(tile, operation);
    if (result == -EAGAIN)
        return false;
    if (result < 0) {
        operation->result = result;
        operation->state = OPERATION_DONE;
        return true;
    }
    if (operation->kind == START_MAIL_RECEIVE) {
        operation->process = (uint32_t)(result >> 32);
        operation->size = operation->done = (uint32_t)result;
    } else {
        operation->done += (uint64_t)result;
    }
    if (operation->done < operation->size)
        return false;
    operation->result = (int64_t)operation->size;
    operation->state = OPERATION_DONE;
    return true;
}

void operations_advance(struct tile *tile)
{
    struct operation *all = operations_of(tile);
    bool done = false, again = true;

    while (again) { /* a done operation may let a younger one of its stream begin */
        again = false;
        for (int i = 0; i < OPERATION_MAX; i++)
            again = try_operation(tile, &all[i]) || again;
        done = done || again;
    }
    if (!done)
        return;
    sched_retry(tile, WAIT_OPERATION, -1, THREAD_MAX);
    sched_retry(tile, WAIT_SEND, -1, THREAD_MAX);
    sched_retry(tile, WAIT_MAIL, -1, THREAD_MAX);
}

int64_t call_mail_send(const struct call *call)
{
    uint64_t process = call->words[0], port = call->words[1], size = call->words[3];
    const void *bytes = call_readable(call, call->words[2], size);
    int result;

    if (process >= PROCESS_MAX || port >= PORT_MAX || !size || size > MAIL_SIZE)
        return -EINVAL;
    if (!bytes)
        return -EFAULT;
    if (has_pending(call->tile, START_MAIL_SEND, (uint32_t)process, port))
        return call_park(call, WAIT_SEND, (uint32_t)(process << 8 | port));
    result = mailbox_put(call->tile->shared, (uint32_t)process, (uint32_t)port, call->tile->process, bytes,
                         (uint32_t)size);
    if (result == -EAGAIN)
        return call_park(call, WAIT_SEND, (uint32_t)(process << 8 | port));
    if (result < 0)
        return result;
    ring(call->tile, (uint32_t)process);
    return (int64_t)size;
}

int64_t call_mail_receive(const struct call *call)
{
    uint64_t port = call->words[0], room = call->words[2];
    void *bytes = call_writable(call, call->words[1], room);
    struct mail_from *from = call_writable(call, call->words[3], sizeof(*from));
    struct mail mail;

    if (port >= PORT_MAX)
        return -EINVAL;
    if (!bytes || (call->words[3] && !from))
        return -EFAULT;
    if (has_pending(call->tile, START_MAIL_RECEIVE, 0, port) ||
        !mailbox_receive(call->tile->shared, call->tile->process, (uint32_t)port, &mail))
        return call_park(call, WAIT_MAIL, (uint32_t)port);
    if (mail.size > room)
        mail.size = (uint32_t)room;
    memcpy(bytes, mail.bytes, mail.size);
    if (from)
        *from = (struct mail_from){.process = (int)mail.from, .port = (int)port};
    return mail.size;
}

int64_t call_sync_signal(const struct call *call)
{
    uint64_t sync = call->words[0], processes = call->words[1];

    if (sync >= SYNC_MAX || !processes || processes >> PROCESS_MAX)
        return -EINVAL;
    return sync_signal(call->tile->shared, call->tile->process, (uint32_t)sync, (uint32_t)processes);
}

int64_t call_sync_wait(const struct call *call)
{
    uint64_t sync = call->words[0], processes = call->words[1];
    int result;

    if (sync >= SYNC_MAX || !processes || processes >> PROCESS_MAX)
        return -EINVAL;
    result = sync_take(call->tile->shared, call->tile->process, (uint32_t)sync, (uint32_t)processes);
    if (result == 0)
        return call_park(call, WAIT_SYNC, (uint32_t)sync);
    return result < 0 ? result : 0;
}

int64_t call_allow(const struct call *call)
{
    uint64_t port = call->words[0], process = call->words[1], ticket = call->words[2], size = call->words[3];

    if (port >= PORTAL_MAX || process >= PROCESS_MAX || process == CONSOLE_PROCESS || ticket >> 24 || !size ||
        size > USER_SIZE)
        return -EINVAL;
    return portal_allow(call->tile->shared, call->tile->process, (uint32_t)port, (uint32_t)process, (uint32_t)ticket,
                        size);
}

/* Returns 0, or why an operation cannot be. */
static int check_operation(const struct call *call, const struct operation *operation, uint64_t address)
{
    bool is_mail = operation->kind <= START_MAIL_RECEIVE;
    bool receives = operation->kind == START_MAIL_RECEIVE || operation->kind == START_PORTAL_RECEIVE;

    if (operation->process >= PROCESS_MAX || operation->port >= (is_mail ? PORT_MAX : PORTAL_MAX) ||
        !operation->size || (operation->kind == START_MAIL_SEND && operation->size > MAIL_SIZE))
        return -EINVAL;
    if (receives ? !call_writable(call, address, operation->size) : !call_readable(call, address, operation->size))
        return -EFAULT;
    if (operation->kind == START_PORTAL_RECEIVE &&
        !portal_is_open(call->tile->shared, call->tile->process, operation->port))
        return -EACCES;
    return 0;
}

int64_t call_start(const struct call *call)
{
    struct endpoint *endpoint = &call->tile->shared->endpoints[call->tile->process];
    uint64_t kind = call->words[0], process = call->words[1], port = call->words[2];
    struct operation operation = {
        .kind = (uint8_t)kind,
        .state = OPERATION_PENDING,
        .port = (uint16_t)(kind <= START_MAIL_RECEIVE ? port : port & 0xff),
        .process = kind == START_MAIL_SEND || kind == START_PORTAL_SEND ? (uint32_t)process : 0,
        .ticket = kind == START_PORTAL_SEND ? (uint32_t)(port >> 8) : 0,
        .offset = (uint32_t)(call->words[3] - USER_BASE),
        .size = call->words[4],
    };
    int error;

    if (kind > START_PORTAL_RECEIVE || process >= PROCESS_MAX || port >> 32 || (port > 0xffff && kind <= 1))
        return -EINVAL;
    error = check_operation(call, &operation, call->words[3]);
    if (error < 0)
        return error;
    for (int i = 0; i < OPERATION_MAX; i++) {
        if (endpoint->operations[i].state != OPERATION_FREE)
            continue;
        operation.turn = endpoint->turn++;
        endpoint->operations[i] = operation;
        try_operation(call->tile, &endpoint->operations[i]);
        return i;
    }
    return -EAGAIN;
}

int64_t call_finish(const struct call *call)
{
    struct mail_from *from = call_writable(call, call->words[1], sizeof(*from));
    struct operation *operation;

    if (call->words[0] >= OPERATION_MAX)
        return -EINVAL;
    if (call->words[1] && !from)
        return -EFAULT;
    operation = &operations_of(call->tile)[call->words[0]];
    if (operation->state == OPERATION_FREE)
        return -EINVAL;
    if (operation->state == OPERATION_PENDING)
        operations_advance(call->tile);
    if (operation->state == OPERATION_PENDING)
        return -EAGAIN;
    if (from)
        *from = (struct mail_from){.process = (int)operation->process, .port = operation->port};
    operation->state = OPERATION_FREE;
    return operation->result;
}

int64_t call_wait(const struct call *call)
{
    const struct operation *all = operations_of(call->tile);
    uint64_t asked = call->words[0], used = 0, done = 0;

    operations_advance(call->tile);
    for (int i = 0; i < OPERATION_MAX; i++) {
        used |= (uint64_t)(all[i].state != OPERATION_FREE) << i;
        done |= (uint64_t)(all[i].state == OPERATION_DONE) << i;
    }
    if (!(asked & used))
        return -EINVAL;
    if (!(asked & done))
        return call_park(call, WAIT_OPERATION, (uint32_t)asked);
    return (int64_t)(asked & done);
}
