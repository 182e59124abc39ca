/* See process_state.h. */
#include "process_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../shared/crc32c.h"

#define NOBODY 255 /* origin of a parcel for which nobody has given credit */

static void append(struct buffer *buffer, const void *bytes, size_t size)
{
    if (buffer->size + size > buffer->room) {
        buffer->room = 2 * buffer->room + size;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes)
            abort();
    }
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

static void append_parcel(struct buffer *buffer, const struct parcel *parcel, const void *bytes)
{
    append(buffer, parcel, sizeof(*parcel));
    append(buffer, bytes, parcel->size);
}

static void capture_queues(struct endpoint *endpoint, struct process_state *state, struct snapshot *snapshot,
                           struct buffer *parcels)
{
    for (uint32_t number = 0; number < PORT_MAX; number++) {
        const struct port *port = &endpoint->ports[number];

        snapshot->mails[number] = port->count;
        for (uint32_t i = 0; i < port->count; i++) {
            const struct mail *mail = &port->mails[(port->first + i) % MAIL_DEPTH];
            struct parcel parcel = {PARCEL_MAIL, (uint8_t)mail->from, (uint8_t)number, NOBODY, 0, mail->size, 0};

            append_parcel(parcels, &parcel, mail->bytes);
        }
    }
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        const struct portal *portal = &endpoint->portals[number];

        snapshot->pieces[number] = portal->expected ? portal->count : 0;
        state->portals[number] = (struct state_portal){portal->from, portal->ticket, portal->expected};
        for (uint32_t i = 0; i < snapshot->pieces[number]; i++) {
            uint32_t at = (portal->first + i) % PIECE_DEPTH;
            struct parcel parcel = {PARCEL_PIECE, (uint8_t)portal->from, (uint8_t)number, NOBODY, 0,
                                    portal->sizes[at], 0};

            append_parcel(parcels, &parcel, portal->pieces[at]);
        }
    }
}

/* The permissions to send that others have granted to the process. */
static void capture_grants(struct parcel_router *router, uint32_t process, struct buffer *parcels)
{
    for (uint32_t other = 1; other < PROCESS_MAX; other++)
        for (uint32_t port = 0; port < PORTAL_MAX; port++) {
            const struct portal *portal = &router->shared->endpoints[other].portals[port];
            struct parcel parcel = {PARCEL_ALLOW, (uint8_t)other, (uint8_t)port, NOBODY, portal->ticket, 0,
                                    portal->allowed};

            if (portal->from == process && portal->allowed && !portal->fresh)
                append(parcels, &parcel, sizeof(parcel));
        }
}

static void describe_facts(const struct location *location, struct process_info *facts)
{
    memset(facts, 0, sizeof(*facts));
    facts->state = PLACE_RUNNING;
    facts->moves = atomic_load(&location->moves);
    facts->rank = location->rank;
    facts->ranks = location->ranks;
    memcpy(facts->members, location->members, sizeof(facts->members));
    memcpy(facts->program, location->program, sizeof(facts->program));
}

void state_describe(const struct location *location, struct process_state *state)
{
    describe_facts(location, &state->facts);
}

static uint32_t checksum(const struct process_state *state, const uint8_t *parcels)
{
    static const uint32_t zero;
    const size_t at = offsetof(struct process_state, checksum), after = at + sizeof(zero);
    uint32_t sum = crc32c(0, state, at);

    sum = crc32c(sum, &zero, sizeof(zero));
    sum = crc32c(sum, (const uint8_t *)state + after, sizeof(*state) - after);
    return crc32c(sum, parcels, state->parcels_size);
}

void state_seal(struct process_state *state, const uint8_t *parcels)
{
    state->checksum = checksum(state, parcels);
}

struct snapshot *state_capture(struct parcel_router *router, uint32_t process, struct process_state *state,
                               struct buffer *buffer)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));

    if (!snapshot)
        abort();
    snapshot->serial = state->serial;
    snapshot->to = state->to;
    describe_facts(&router->shared->locations[process], &state->facts);
    append(buffer, state, sizeof(*state));
    endpoint_lock(endpoint);
    capture_queues(endpoint, state, snapshot, buffer);
    memcpy(snapshot->signals, endpoint->signals, sizeof(snapshot->signals));
    memcpy(state->signals, endpoint->signals, sizeof(state->signals));
    memcpy(state->operations, endpoint->operations, sizeof(state->operations));
    state->turn = endpoint->turn;
    endpoint_unlock(endpoint);
    for (const struct kept *kept = router->pending[process].first; kept; kept = kept->next)
        append_parcel(buffer, &kept->parcel, kept->bytes);
    capture_grants(router, process, buffer);
    state->parcels_size = (uint32_t)(buffer->size - sizeof(*state));
    state_seal(state, buffer->bytes + sizeof(*state));
    memcpy(buffer->bytes, state, sizeof(*state));
    return snapshot;
}

size_t state_list_pages(const uint64_t written[WRITTEN_WORDS], const uint8_t *image, struct iovec *parts)
{
    size_t count = 0;

    for (size_t page = 0; page < USER_SIZE / PAGE_SIZE; page++) {
        if (!(written[page / 64] >> page % 64 & 1))
            continue;
        if (count && (const uint8_t *)parts[count - 1].iov_base + parts[count - 1].iov_len == image + page * PAGE_SIZE)
            parts[count - 1].iov_len += PAGE_SIZE;
        else
            parts[count++] = (struct iovec){(void *)(image + page * PAGE_SIZE), PAGE_SIZE};
    }
    return count;
}

size_t state_list_memory(const struct process_state *state, const struct user_area *area, const uint8_t *image,
                         struct iovec parts[STATE_PARTS])
{
    struct extent extents[THREAD_MAX + 2];
    size_t count = 0, pages;

    if (state->mode == MODE_FAITHFUL)
        return 0;
    parts[count++] = (struct iovec){(void *)area->head, sizeof(area->head)};
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (area->used >> slot & 1)
            parts[count++] = (struct iovec){(void *)&area->threads[slot], sizeof(area->threads[slot])};
    if (state->mode == MODE_PRECOPY)
        return count + state_list_pages(state->written, image, parts + count);
    pages = (size_t)user_area_list_extents(area, extents);
    for (size_t i = 0; i < pages; i++)
        parts[count++] = (struct iovec){(void *)(image + extents[i].offset), extents[i].size};
    return count;
}

void state_strip(struct parcel_router *router, uint32_t process, const struct snapshot *snapshot)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];
    uint32_t waiting;

    endpoint_lock(endpoint);
    for (uint32_t port = 0; port < PORT_MAX; port++) {
        endpoint->ports[port].first = (endpoint->ports[port].first + snapshot->mails[port]) % MAIL_DEPTH;
        endpoint->ports[port].count -= snapshot->mails[port];
    }
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        struct portal *portal = &endpoint->portals[number];

        portal->first = (portal->first + snapshot->pieces[number]) % PIECE_DEPTH;
        portal->count -= snapshot->pieces[number];
        portal->expected = portal->allowed;
        for (uint32_t i = 0; i < portal->count; i++)
            portal->expected += portal->sizes[(portal->first + i) % PIECE_DEPTH];
        portal->fresh = false;
    }
    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++)
            endpoint->signals[sync][from] -= snapshot->signals[sync][from];
    memset(endpoint->operations, 0, sizeof(endpoint->operations));
    endpoint->behind = 0;
    waiting = endpoint->waiting;
    endpoint->waiting = 0;
    endpoint_unlock(endpoint);
    router_forget(&router->pending[process]);
    for (uint32_t other = 1; other < PROCESS_MAX; other++)
        for (uint32_t number = 0; number < PORTAL_MAX; number++) {
            struct portal *portal = &router->shared->endpoints[other].portals[number];

            if (portal->from != process || portal->fresh)
                continue;
            endpoint_lock(&router->shared->endpoints[other]);
            portal->allowed = 0;
            if (!net_is_here(router->net, other))
                portal->expected = 0; /* its pieces have been flushed */
            endpoint_unlock(&router->shared->endpoints[other]);
        }
    shared_ring_processes(router->shared, waiting);
}

/* A cursor in the received bytes. */
struct reader {
    const uint8_t *bytes;
    size_t left;
};

static bool read_bytes(struct reader *reader, void *to, size_t size)
{
    if (reader->left < size)
        return false;
    memcpy(to, reader->bytes, size);
    reader->bytes += size;
    reader->left -= size;
    return true;
}

static bool read_area(struct reader *reader, struct user_area *area)
{
    if (!read_bytes(reader, area->head, sizeof(area->head)))
        return false;
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (area->used >> slot & 1 && !read_bytes(reader, &area->threads[slot], sizeof(area->threads[slot])))
            return false;
    return true;
}

static bool read_pages(struct reader *reader, const struct process_state *state, const struct user_area *area,
                       uint8_t *image)
{
    struct extent extents[THREAD_MAX + 2];
    int count = user_area_list_extents(area, extents);

    for (uint32_t page = 0; state->mode == MODE_PRECOPY && page < USER_SIZE / PAGE_SIZE; page++)
        if (state->written[page / 64] >> page % 64 & 1 && !read_bytes(reader, image + page * PAGE_SIZE, PAGE_SIZE))
            return false;
    for (int i = 0; state->mode != MODE_PRECOPY && i < count; i++)
        if (!read_bytes(reader, image + extents[i].offset, extents[i].size))
            return false;
    return true;
}

static const char *read_memory(struct reader *reader, const struct process_state *state,
                               const struct shared_memory *shared,
                               uint32_t process, struct user_area *area, uint8_t *image)
{
    const char *wrong;

    if (state->mode == MODE_FAITHFUL)
        return reader->left ? "it has memory that belongs in pieces" : NULL;
    if (!read_area(reader, area))
        return "its state is cut off";
    wrong = user_area_check(area, process, shared->xfeatures, shared->xsize);
    if (wrong)
        return wrong;
    return read_pages(reader, state, area, image) && !reader->left ? NULL : "its pages are cut off";
}

/* Whether the program has these bytes, as for a call of its own (user_memory() in kernel_call.c). */
static bool has_memory(const struct operation *operation, uint32_t from, uint32_t end)
{
    uint32_t limit = operation->offset >= ARGUMENTS_OFFSET ? USER_SIZE : end;

    return operation->offset >= from && operation->offset <= limit && operation->size <= limit - operation->offset;
}

/* Whether call_start() could have started it. `from`, `end`: the part of the image that the program can write. */
static bool is_operation(const struct operation *operation, uint32_t from, uint32_t end)
{
    bool is_mail = operation->kind <= START_MAIL_RECEIVE;
    bool receives = operation->kind == START_MAIL_RECEIVE || operation->kind == START_PORTAL_RECEIVE;

    if (operation->state == OPERATION_FREE)
        return true;
    if (operation->state > OPERATION_DONE || operation->kind > START_PORTAL_RECEIVE ||
        operation->process >= PROCESS_MAX || operation->port >= (is_mail ? PORT_MAX : PORTAL_MAX) ||
        (operation->kind == START_MAIL_SEND && operation->size > MAIL_SIZE) || operation->done > operation->size)
        return false;
    if (operation->state == OPERATION_PENDING && operation->done == operation->size)
        return false;
    return has_memory(operation, receives ? from : 0, end);
}

const char *state_unpack(struct shared_memory *shared, uint32_t process, uint32_t slot,
                         const struct incoming_move *incoming,
                         const uint8_t *payload, size_t size, struct process_state *state, const uint8_t **parcels)
{
    const struct user_area *area = shared_area(shared, slot);
    struct reader reader = {payload, size};
    const char *wrong;

    if (!read_bytes(&reader, state, sizeof(*state)) || reader.left < state->parcels_size)
        return "its state is cut off";
    if (state->mode >= MODE_COUNT || state->mode == MODE_HANDOFF)
        return "it comes in no way that there is";
    if (state->checksum != checksum(state, reader.bytes))
        return "the checksum of its messages is wrong";
    *parcels = reader.bytes;
    reader.bytes += state->parcels_size;
    reader.left -= state->parcels_size;
    wrong = read_memory(&reader, state, shared, process, shared_area(shared, slot),
                        shared_image(shared, slot));
    if (!wrong && incoming && state->mode != MODE_FAITHFUL &&
        (area->text_end != incoming->text_end || area->rodata_end != incoming->rodata_end))
        wrong = "its image has other bounds than it was offered with";
    for (int i = 0; !wrong && i < OPERATION_MAX; i++)
        if (!is_operation(&state->operations[i], incoming ? incoming->rodata_end : area->rodata_end,
                          state->mode == MODE_FAITHFUL ? ARGUMENTS_OFFSET : area->end)) /* there it comes later */
            wrong = "an operation of it is impossible";
    return wrong;
}

static void fill_portals(struct parcel_router *router, struct endpoint *endpoint, struct incoming_move *incoming)
{
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        const struct state_portal *from = &incoming->state.portals[number];
        struct portal *portal = &endpoint->portals[number];
        bool same = portal->from == from->from && portal->ticket == from->ticket &&
                    net_is_here(router->net, from->from % PROCESS_MAX);

        incoming->before[number] =
            (struct portal_before){portal->from, portal->ticket, portal->allowed, portal->expected, portal->fresh};
        portal->allowed = same && from->expected ? portal->allowed : 0;
        portal->from = from->from % PROCESS_MAX;
        portal->ticket = from->ticket;
        portal->expected = from->expected;
        portal->first = portal->count = 0;
        portal->fresh = false;
    }
}

/* Appends them to the pending parcels of the process. Returns NULL, or their fault. */
static const char *keep_parcels(struct parcel_router *router, uint32_t process, const uint8_t *bytes, size_t size)
{
    struct parcel parcel;

    for (size_t at = 0; at < size; at += sizeof(parcel) + parcel.size) {
        if (size - at < sizeof(parcel))
            return "its messages are cut off";
        memcpy(&parcel, bytes + at, sizeof(parcel));
        if (!router_is_valid(&parcel) || parcel.size > size - at - sizeof(parcel))
            return "a message to it is impossible";
        router_keep(&router->pending[process], &parcel, bytes + at + sizeof(parcel));
    }
    return NULL;
}

const char *state_install(struct parcel_router *router, uint32_t process, struct incoming_move *incoming,
                          const uint8_t *parcels)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];
    const struct process_state *state = &incoming->state;
    const char *wrong;

    router_close(router, process);
    router_flush(router); /* messages that our tiles have put so far precede those from now on */
    router_forget(&router->pending[process]);
    wrong = keep_parcels(router, process, parcels, state->parcels_size);
    if (wrong) {
        router_forget(&router->pending[process]);
        router_open(router, process);
        return wrong;
    }
    endpoint_lock(endpoint);
    fill_portals(router, endpoint, incoming);
    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++)
            endpoint->signals[sync][from] += state->signals[sync][from];
    memcpy(endpoint->operations, state->operations, sizeof(endpoint->operations));
    endpoint->turn = state->turn;
    endpoint_unlock(endpoint);
    incoming->has_state = true;
    router_fill(router, process);
    return NULL;
}

void state_revert(struct parcel_router *router, uint32_t process, const struct incoming_move *incoming)
{
    struct endpoint *endpoint = &router->shared->endpoints[process];

    endpoint_lock(endpoint);
    for (uint32_t port = 0; port < PORT_MAX; port++)
        endpoint->ports[port].first = endpoint->ports[port].count = 0;
    for (uint32_t number = 0; number < PORTAL_MAX; number++) {
        const struct portal_before *before = &incoming->before[number];
        struct portal *portal = &endpoint->portals[number];

        portal->from = before->from;
        portal->ticket = before->ticket;
        portal->allowed = before->allowed;
        portal->expected = before->expected;
        portal->fresh = before->fresh;
        portal->first = portal->count = 0;
    }
    for (uint32_t sync = 0; sync < SYNC_MAX; sync++)
        for (uint32_t from = 0; from < PROCESS_MAX; from++)
            endpoint->signals[sync][from] -= incoming->state.signals[sync][from];
    memset(endpoint->operations, 0, sizeof(endpoint->operations));
    endpoint_unlock(endpoint);
    router_forget(&router->pending[process]);
}
