/* The mailboxes; see endpoint.h. */
#include <errno.h>
#include <string.h>

#include "mesh.h"

void endpoint_lock(struct endpoint *endpoint)
{
    if (pthread_mutex_lock(&endpoint->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&endpoint->lock);
}

void endpoint_unlock(struct endpoint *endpoint)
{
    pthread_mutex_unlock(&endpoint->lock);
}

bool endpoint_has_come(struct endpoint *endpoint, int64_t due)
{
    if (!due || due <= shared_now())
        return true;
    if (!endpoint->due || due < endpoint->due)
        endpoint->due = due;
    return false;
}

int64_t endpoint_next_due(struct endpoint *endpoint)
{
    int64_t due;

    endpoint_lock(endpoint);
    due = endpoint->due;
    endpoint_unlock(endpoint);
    return due;
}

void endpoint_look_again(struct endpoint *endpoint)
{
    endpoint_lock(endpoint);
    if (endpoint->due <= shared_now())
        endpoint->due = 0;
    endpoint_unlock(endpoint);
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
    memset(endpoint->signal_due, 0, sizeof(endpoint->signal_due));
    endpoint->turn = endpoint->waiting = endpoint->behind = 0;
    endpoint->due = 0;
    endpoint_unlock(endpoint);
    for (uint32_t other = 0; other < PROCESS_MAX; other++) {
        atomic_store(&shared->said[process][other], 0);
        atomic_store(&shared->said[other][process], 0);
    }
    /* Signals of an earlier process of this number are not from it. */
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
        mail->due = is_board ? 0 : mesh_due(shared, from, process);
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

static bool take(struct shared_memory *shared, uint32_t process, uint32_t port, struct mail *mail, bool is_board)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    struct port *from = &endpoint->ports[port];
    uint32_t waiting = 0;
    int64_t due;
    bool found;

    endpoint_lock(endpoint);
    due = endpoint->due;
    found = from->count > 0 && (is_board || endpoint_has_come(endpoint, from->mails[from->first].due));
    due -= endpoint->due;
    if (found) {
        *mail = from->mails[from->first];
        from->first = (from->first + 1) % MAIL_DEPTH;
        from->count--;
        waiting = endpoint->waiting;
        endpoint->waiting = 0;
    }
    endpoint_unlock(endpoint);
    if (due) /* its master must not sleep longer */
        shared_ring_process(shared, process);
    shared_ring_processes(shared, waiting);
    return found;
}

bool mailbox_receive(struct shared_memory *shared, uint32_t process, uint32_t port, struct mail *mail)
{
    return take(shared, process, port, mail, false);
}

bool mailbox_take(struct shared_memory *shared, uint32_t process, uint32_t port, struct mail *mail)
{
    return take(shared, process, port, mail, true);
}
