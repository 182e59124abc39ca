/*
 * The mailboxes. An inbox belongs to a tile process, not to a tile: whoever runs the process reads it, so a message is
 * there once and in its order wherever its reader has moved to.
 *
 * A message exists from the store of `count` on and is gone from the store of `first` and `count` on, both under the
 * lock; a tile that is killed between two stores leaves at worst a message read by a process that died with it.
 */
#include <errno.h>
#include <string.h>

#include "window.h"

static void lock(struct inbox *inbox)
{
    if (pthread_mutex_lock(&inbox->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&inbox->lock);
}

static void unlock(struct inbox *inbox)
{
    pthread_mutex_unlock(&inbox->lock);
}

int inbox_put(struct window *window, uint32_t process, uint32_t port, uint32_t from, const void *bytes, uint32_t size)
{
    struct inbox *inbox = &window->inboxes[process];
    struct port *to = &inbox->ports[port];
    struct mail *mail;
    int result = 0;

    lock(inbox);
    if (process != CONSOLE_PROCESS && window_place(window, process).state != PLACE_RUNNING) {
        result = -ESRCH;
    } else if (to->count == MAIL_DEPTH) {
        inbox->waiting |= 1u << from;
        result = -EAGAIN;
    } else {
        mail = &to->mails[(to->first + to->count) % MAIL_DEPTH];
        mail->from = from;
        mail->size = size;
        memcpy(mail->bytes, bytes, size);
        to->count++;
    }
    unlock(inbox);
    return result;
}

bool inbox_take(struct window *window, uint32_t process, uint32_t port, struct mail *mail)
{
    struct inbox *inbox = &window->inboxes[process];
    struct port *from = &inbox->ports[port];
    uint32_t waiting = 0;
    bool found;

    lock(inbox);
    found = from->count > 0;
    if (found) {
        *mail = from->mails[from->first];
        from->first = (from->first + 1) % MAIL_DEPTH;
        from->count--;
        waiting = inbox->waiting;
        inbox->waiting = 0;
    }
    unlock(inbox);
    for (uint32_t sender = 0; waiting; sender++, waiting >>= 1)
        if (waiting & 1)
            window_ring_process(window, sender);
    return found;
}

void inbox_clear(struct window *window, uint32_t process)
{
    struct inbox *inbox = &window->inboxes[process];

    lock(inbox);
    memset(inbox->ports, 0, sizeof(inbox->ports));
    inbox->waiting = 0;
    unlock(inbox);
}
