/* The portals; see endpoint.h. */
#include <errno.h>
#include <string.h>

#include "mesh.h"

int portal_allow(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, uint32_t ticket,
                 uint64_t size)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    struct portal *portal = &endpoint->portals[port];
    int result = 0;

    endpoint_lock(endpoint);
    if (portal->expected) {
        result = -EBUSY;
    } else {
        portal->from = from;
        portal->ticket = ticket;
        portal->first = portal->count = 0;
        portal->expected = size;
        portal->allowed = size;
        portal->fresh = true;
    }
    endpoint_unlock(endpoint);
    if (result == 0)
        shared_ring_process(shared, from);
    return result;
}

static uint64_t put_pieces(struct portal *portal, const uint8_t *bytes, uint64_t size, int64_t due)
{
    uint64_t done = 0;

    if (size > portal->allowed)
        size = portal->allowed;
    while (done < size && portal->count < PIECE_DEPTH) {
        uint32_t at = (portal->first + portal->count) % PIECE_DEPTH;
        uint32_t some = size - done < PAGE_SIZE ? (uint32_t)(size - done) : PAGE_SIZE;

        memcpy(portal->pieces[at], bytes + done, some);
        portal->sizes[at] = some;
        portal->due[at] = due;
        portal->count++;
        done += some;
    }
    portal->allowed -= done;
    return done;
}

int64_t portal_put(struct shared_memory *shared, uint32_t process, uint32_t port, uint32_t from, uint32_t ticket,
                   const uint8_t *bytes, uint64_t size)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    struct portal *portal = &endpoint->portals[port];
    int64_t done = 0;

    endpoint_lock(endpoint);
    if (shared_place(shared, process).state != PLACE_RUNNING)
        done = -ESRCH;
    else if (portal->allowed && portal->from == from && portal->ticket == ticket &&
             !(endpoint->behind >> from & 1))
        done = (int64_t)put_pieces(portal, bytes, size, mesh_due(shared, from, process));
    if (done >= 0 && (uint64_t)done < size)
        endpoint->waiting |= 1u << from;
    endpoint_unlock(endpoint);
    if (done > 0) {
        atomic_fetch_add(&shared->said[from][process], (uint32_t)(done + PAGE_SIZE - 1) / PAGE_SIZE);
        shared_ring_process(shared, process);
    }
    return done ? done : -EAGAIN;
}

static uint32_t take_first(struct portal *portal, uint8_t *bytes)
{
    uint32_t size = portal->sizes[portal->first];

    memcpy(bytes, portal->pieces[portal->first], size);
    portal->expected -= size;
    portal->first = (portal->first + 1) % PIECE_DEPTH;
    portal->count--;
    return size;
}

uint32_t portal_take_piece(struct shared_memory *shared, uint32_t process, uint32_t port, uint8_t *bytes)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    uint32_t size = 0, waiting = 0;

    endpoint_lock(endpoint);
    if (endpoint->portals[port].expected && endpoint->portals[port].count) {
        size = take_first(&endpoint->portals[port], bytes);
        waiting = endpoint->waiting;
        endpoint->waiting = 0;
    }
    endpoint_unlock(endpoint);
    shared_ring_processes(shared, waiting);
    return size;
}

int64_t portal_take(struct shared_memory *shared, uint32_t process, uint32_t port, uint8_t *bytes, uint64_t size)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    struct portal *portal = &endpoint->portals[port];
    uint32_t waiting = 0;
    uint64_t done = 0;
    int64_t due;
    bool gone;

    endpoint_lock(endpoint);
    due = endpoint->due;
    while (portal->expected && portal->count && portal->sizes[portal->first] <= size - done &&
           endpoint_has_come(endpoint, portal->due[portal->first]))
        done += take_first(portal, bytes + done);
    gone = portal->expected && !portal->count && shared_place(shared, portal->from).state != PLACE_RUNNING &&
           !(endpoint->behind >> portal->from & 1);
    if (done) {
        waiting = endpoint->waiting;
        endpoint->waiting = 0;
    } else if (gone) {
        portal->expected = portal->allowed = 0;
    }
    due -= endpoint->due;
    endpoint_unlock(endpoint);
    if (due) /* its master must not sleep longer */
        shared_ring_process(shared, process);
    shared_ring_processes(shared, waiting);
    return done ? (int64_t)done : gone ? -ESRCH : 0;
}

bool portal_is_open(struct shared_memory *shared, uint32_t process, uint32_t port)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    bool open;

    endpoint_lock(endpoint);
    open = endpoint->portals[port].expected > 0;
    endpoint_unlock(endpoint);
    return open;
}
