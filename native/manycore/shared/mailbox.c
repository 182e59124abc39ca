/* The mailboxes; see endpoint.h. */
#include <errno.h>
#include <string.h>

#include "shared_memory.h"

void endpoint_lock(struct endpoint *endpoint)
{
    if (pthread_mutex_lock(&endpoint->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&endpoint->lock);
}

void endpoint_unlock(struct endpoint *endpoint)
{
    pthread_mutex_unlock(&endpoint->lock);
}

void endpoint_clear(struct shared_memory *shared, uint32_t process)
{
    struct endpoint *endpoint = &shared->endpoints[process];

    endpoint_lock(endpoint);
    for (uint32_t port = 0; port < PORT_MAX; port++)
        endpoint->ports[port].first = endpoint->ports[port].count = 0;
    for (uint32_t port = 0; port < PORTAL_MAX; port++)
        endpoint->portals[port].expected = endpoint->portals[port].allowed = endpoint->portals[port].count = 0;
    memset(endpoint->signals, 0, sizeof(endpoint->signals));
    memset(endpoint->operations, 0, sizeof(endpoint->operations));
    endpoint->turn = endpoint->waiting = endpoint->behind = 0;
    endpoint_unlock(endpoint);
    for (uint32_t other = 0; other < PROCESS_MAX; other++) {
        atomic_store(&shared->said[process][other], 0);
        atomic_store(&shared->said[other][process], 0);
    }
    /* What it had signalled in an earlier life is not from it. */
    for (uint32_t other = 0; other < PROCESS_MAX; other++) {
        endpoint_lock(&shared->endpoints[other]);
        for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
            shared->endpoints[other].signals[sync][process] = 0;
        endpoint_unlock(&shared->endpoints[other]);
    }
}

static int put(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, const void *bytes,
               uint32_t size, bool is_board)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    struct port *to = &endpoint->ports[port];
    struct mail *mail;
    int result = 0;

    endpoint_lock(endpoint);
    if (process != CONSOLE_PROCESS && shared_place(shared, process).state != PLACE_RUNNING) {
        result = -ESRCH;
    } else if (to->count == MAIL_DEPTH || (!is_board && endpoint->behind >> from & 1)) {
        endpoint->waiting |= 1u << from;
        result = -EAGAIN;
    } else {
        mail = &to->mails[(to->first + to->count) % MAIL_DEPTH];
        mail->from = from;
        mail->size = size;
        memcpy(mail->bytes, bytes, size);
        to->count++;
    }
    endpoint_unlock(endpoint);
    if (result == 0 && !is_board)
        atomic_fetch_add(&shared->said[from][process], 1);
    return result;
}

int mailbox_put(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, const void *bytes,
                uint32_t size)
{
    return put(shared, process, port, from, bytes, size, false);
}

int mailbox_hand_over(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, const void *bytes,
                      uint32_t size)
{
    return put(shared, process, port, from, bytes, size, true);
}

bool mailbox_take(struct shared_memory *shared, uint32_t process, uint32_t port, struct mail *mail)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    struct port *from = &endpoint->ports[port];
    uint32_t waiting = 0;
    bool found;

    endpoint_lock(endpoint);
    found = from->count > 0;
    if (found) {
        *mail = from->mails[from->first];
        from->first = (from->first + 1) % MAIL_DEPTH;
        from->count--;
        waiting = endpoint->waiting;
        endpoint->waiting = 0;
    }
    endpoint_unlock(endpoint);
    shared_ring_processes(shared, waiting);
    return found;
}
