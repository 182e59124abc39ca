/*
 * A STATE: the process as it is sent to another host.
 *
 *   struct process_state | parcels: struct parcel, bytes, ... | memory
 *
 * The parcels are the process's unread messages, its grants to send, and the pieces in its portals; at the
 * destination they are delivered as parcels that come later. Memory is the User Area (its head and the used slots) and,
 * by mode, all pages that user_area_list_extents() lists, those marked in `written`, or, `faithful`, nothing at all:
 * there even the User Area comes by pieces. A receiver checks every length, the checksums, and the User Area entirely.
 */
#ifndef WHERRY_MANYCORE_BOARD_MIGRATION_PROCESS_STATE_H
#define WHERRY_MANYCORE_BOARD_MIGRATION_PROCESS_STATE_H

#include "../../shared/user_area.h"
#include "../hosts/parcel_router.h"

struct state_portal {
    uint32_t from, ticket;
    uint64_t expected;
};

struct process_state {
    uint32_t serial, to, mode, tracking; /* to: tile */
    uint32_t parcels_size, turn;
    uint32_t checksum, unused;           /* CRC-32C of this, and of the parcels; the User Area has its own */
    uint64_t written[WRITTEN_WORDS];
    struct process_info facts;
    uint32_t signals[SYNC_MAX][PROCESS_MAX];
    struct state_portal portals[PORTAL_MAX];
    struct operation operations[OPERATION_MAX];
};

/* How much of the endpoint was sent: that is removed when the move commits; later messages are forwarded. */
struct snapshot {
    uint32_t serial, to; /* of the move, whose record may be free before COMMITTED or ABORT comes */
    uint32_t mails[PORT_MAX], pieces[PORTAL_MAX], signals[SYNC_MAX][PROCESS_MAX];
};

/* A process that is moving to this host. */
struct incoming_move {
    uint32_t serial;
    uint8_t slot, tile;
    bool has_state, told;  /* `told`: READY was sent to the leader */
    uint32_t text_end, rodata_end;
    uint64_t place;        /* the location entry that it had here before */
    struct process_state state;
    struct portal_before { /* its portals, restored if the process does not come */
        uint32_t from, ticket;
        uint64_t allowed, expected;
        bool fresh;
    } before[PORTAL_MAX];
};

struct buffer {
    uint8_t *bytes;
    size_t size, room;
};

/* The most bytes of pending parcels with which a process still fits into a frame, whatever its endpoint holds. */
#define STATE_PENDING_MAX                                                                                       \
    (FRAME_MAX - sizeof(struct process_state) - sizeof(struct user_area) - USER_SIZE -                                      \
     PORT_MAX * MAIL_DEPTH * (sizeof(struct parcel) + MAIL_SIZE) -                                              \
     PORTAL_MAX * PIECE_DEPTH * (sizeof(struct parcel) + PAGE_SIZE) - PROCESS_MAX * PORTAL_MAX * sizeof(struct parcel))
#define STATE_PARTS (1 + THREAD_MAX + USER_SIZE / PAGE_SIZE)

/* Its checksum, with the parcels that go with it. */
void state_seal(struct process_state *state, const uint8_t *parcels);
/*
 * Everything of a frozen process but its memory: the state, and the parcels behind it. `state->serial` and so on are
 * set. Returns the captured part of its endpoint, for state_strip(); the caller frees it.
 */
struct snapshot *state_capture(struct parcel_router *router, uint32_t process, struct process_state *state,
                               struct buffer *buffer);
/* Of a process that has sent and received nothing yet. */
void state_describe(const struct location *location, struct process_state *state);
/* The pages that are marked, neighbours as one part. Returns the count of parts. */
size_t state_list_pages(const uint64_t written[WRITTEN_WORDS], const uint8_t *image, struct iovec *parts);
/* The memory that goes with it. Returns the count of parts. */
size_t state_list_memory(const struct process_state *state, const struct user_area *area, const uint8_t *image,
                         struct iovec parts[STATE_PARTS]);
/* The old owner: the sent part is removed from the endpoint, which forwards to the new host from now on. */
void state_strip(struct parcel_router *router, uint32_t process, const struct snapshot *snapshot);

/*
 * Unpacks a STATE: its memory goes into the slot. `incoming` is the offered move, NULL for a process that is started.
 * Returns NULL and where the parcels are, or the fault.
 */
const char *state_unpack(struct shared_memory *shared, uint32_t process, uint32_t slot,
                         const struct incoming_move *incoming,
                           const uint8_t *payload, size_t size, struct process_state *state, const uint8_t **parcels);
/* The endpoint becomes the process's own, with its old content and the parcels. Returns NULL, or their fault. */
const char *state_install(struct parcel_router *router, uint32_t process, struct incoming_move *incoming,
                          const uint8_t *parcels);
/* The process does not come: the endpoint forwards to its host as before. */
void state_revert(struct parcel_router *router, uint32_t process, const struct incoming_move *incoming);

#endif
