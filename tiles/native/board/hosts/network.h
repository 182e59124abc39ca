/*
 * The hosts of a cluster of tiles and the frames between their boards: which host has which tile, a channel to each
 * host (the leader) or to the leader (the others), and the handler of each kind of frame.
 *
 * Invariant: this file interprets no frame but DOWN. Every other module registers the kinds that it handles, so
 * calls go down the layers, and frames and events come up.
 */
#ifndef WHERRY_MANYCORE_BOARD_HOSTS_NETWORK_H
#define WHERRY_MANYCORE_BOARD_HOSTS_NETWORK_H

#include <netinet/in.h>

#include "authentication.h"
#include "protocol.h"

#define HANDSHAKE_MAX 8 /* connections whose greeting has not come yet */

typedef void frame_handler(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload);
typedef void host_lost_handler(void *context, uint32_t host);

/* A connection that has not proved yet which host it comes from. */
struct handshake {
    int64_t since; /* when it connected; 0: there is none */
    int fd;
    size_t count;  /* bytes of its greeting */
    uint8_t nonce[NONCE_SIZE];
    struct greeting greeting;
};

struct net {
    struct shared_memory *shared;
    uint32_t host, hosts;        /* 0 of 1: there is only this host */
    uint32_t tiles[HOST_MAX];    /* of each host, in order of their numbers */
    struct channel channels[HOST_MAX]; /* the leader: one for each other host. Others: channels[0] */
    bool gone[HOST_MAX];         /* the leader: it has not answered for LOST_MS, and its processes are lost */
    bool leader_lost;            /* without the leader no process here may run */
    bool stopping;
    struct handshake handshakes[HANDSHAKE_MAX];
    int listen_fd;
    struct sockaddr_in leader;
    struct hello hello;
    struct secret secret;
    struct clock clock;
    struct { frame_handler *handle; void *context; } handlers[FRAME_KINDS];
    host_lost_handler *host_lost; /* the leader: after `gone` is set */
    void *host_lost_context;
};

/* A board of this host alone, until membership_start(); no handlers. */
void net_init(struct net *net, struct shared_memory *shared);
void net_on_frame(struct net *net, enum frame_kind kind, frame_handler *handle, void *context);
void net_on_host_lost(struct net *net, host_lost_handler *handle, void *context);
/* Hands a frame of host `from` to its handler; a kind that only the leader may send is ignored from another host. */
void net_handle(struct net *net, uint32_t from, const struct frame_head *head, const uint8_t *payload);
uint32_t net_host_of_tile(const struct net *net, uint32_t tile);
/* Whether the process runs on a tile of this host. */
bool net_is_here(const struct net *net, uint32_t process);
/* Sends to the leader or, as the leader, to a host; a frame for this host itself is handled at once. */
void net_send(struct net *net, uint32_t host, enum frame_kind kind, uint32_t process, const void *payload, size_t size);
/* The channel on which a frame for the host leaves: the host's own at the leader, else the leader's. */
struct channel *net_channel(struct net *net, uint32_t host);
/* A payload that is a struct order; an empty one when the size is wrong. `why` is always terminated. */
struct order net_read_order(const struct frame_head *head, const uint8_t *payload);

#endif
