/* See location_directory.h. */
#include "location_directory.h"

#include <stdio.h>
#include <string.h>

#include "hosts/membership.h"
#include "hosts/processes.h"
#include "migration/incoming_move.h"

void directory_announce(struct directory *directory, uint32_t process)
{
    struct net *net = directory->net;
    struct process_info info;

    if (net->host != 0)
        return;
    processes_describe(directory->net, process, &info);
    if (memcmp(&info, &directory->told[process], sizeof(info)) == 0)
        return;
    directory->told[process] = info;
    for (uint32_t host = 1; host < net->hosts; host++)
        if (!net->gone[host])
            channel_send(&net->channels[host], FRAME_PROCESS, process, host, &info, sizeof(info));
}

/* A process of another host. Of a process here, or just arriving, the board's entry is newer than the leader's. */
static void learn(struct directory *directory, uint32_t process, const struct process_info *info)
{
    struct location *location = &directory->shared->locations[process];
    struct place place = {.state = (uint8_t)info->state, .slot = NO_SLOT, .tile = (uint8_t)info->tile};

    if (info->state > PLACE_LOST || net_is_here(directory->net, process) || directory->proxy->incoming[process] ||
        (info->state == PLACE_RUNNING && net_host_of_tile(directory->net, info->tile) == directory->net->host))
        return;
    if (info->state == PLACE_FREE) {
        endpoint_clear(directory->shared, process);
        proxy_clear(directory->proxy, process);
    }
    processes_learn(location, info);
    shared_commit(directory->shared, process, atomic_load(&location->word), place);
    for (uint32_t tile = 0; tile < directory->shared->tile_count; tile++)
        shared_ring(directory->shared, tile); /* threads that wait for a process that has ended must look again */
}

/* The leader: the owner reports that a process has ended or been lost. */
static void learn_end(struct directory *directory, uint32_t host, uint32_t process, const struct process_info *info)
{
    struct location *location = &directory->shared->locations[process];
    struct place place = shared_place(directory->shared, process);

    if (place.state != PLACE_RUNNING || net_host_of_tile(directory->net, place.tile) != host ||
        (info->state != PLACE_ENDED && info->state != PLACE_LOST))
        return; /* it has moved away from there: an old copy has ended */
    location->status = (int32_t)info->status;
    memcpy(location->why, info->why, REASON_SIZE - 1);
    place.state = (uint8_t)info->state;
    coordinator_owner_lost(directory->coordinator, process);
    shared_commit(directory->shared, process, atomic_load(&location->word), place);
    directory_announce(directory, process);
}

static void on_host_lost(void *context, uint32_t host)
{
    struct directory *directory = context;
    struct net *net = directory->net;

    router_reset_credit(directory->router);
    for (uint32_t other = 1; other < net->hosts; other++)
        if (!net->gone[other])
            net_send(directory->net, other, FRAME_GONE, 0, NULL, 0);
    coordinator_host_gone(directory->coordinator, host);
    for (uint32_t tile = 0; tile < directory->shared->tile_count; tile++)
        if (net_host_of_tile(directory->net, tile) == host)
            atomic_store(&directory->shared->tiles[tile].alive, 0);
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct location *location = &directory->shared->locations[process];
        struct place place = shared_place(directory->shared, process);

        if (place.state != PLACE_RUNNING || net_host_of_tile(directory->net, place.tile) != host)
            continue;
        place.state = PLACE_LOST;
        snprintf(location->why, REASON_SIZE, "host %u has not answered for %d s", host, LOST_MS / 1000);
        shared_commit(directory->shared, process, atomic_load(&location->word), place);
        proxy_clear(directory->proxy, process);
    }
}

void directory_serve(struct directory *directory)
{
    struct net *net = directory->net;
    bool *mine = directory->proxy->mine;
    struct process_info info;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        bool come = incoming_has_come(directory->proxy, process), here = net_is_here(directory->net, process);
        uint8_t state = shared_place(directory->shared, process).state;

        if (directory->proxy->incoming[process] && !come)
            continue; /* it may be arriving just now: READY goes first */
        if (mine[process] && !here && state != PLACE_RUNNING)
            router_flush(directory->router); /* its last messages precede the report of its end */
        if (net->host == 0 && coordinator_is_moving(directory->coordinator, process) && state != PLACE_RUNNING)
            coordinator_owner_lost(directory->coordinator, process);
        if (net->host == 0 && !coordinator_is_moving(directory->coordinator, process))
            directory_announce(directory, process);
        if (mine[process] && !here && (state == PLACE_ENDED || state == PLACE_LOST) && net->host != 0) {
            processes_describe(directory->net, process, &info);
            net_send(directory->net, 0, FRAME_ENDED, process, &info, sizeof(info));
        }
        mine[process] = here;
    }
}

static void on_process(void *context, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct directory *directory = context;
    struct process_info info;

    if (head->size != sizeof(info))
        return;
    memcpy(&info, payload, sizeof(info));
    if (head->kind == FRAME_PROCESS && directory->net->host != 0)
        learn(directory, head->process, &info);
    else if (head->kind == FRAME_ENDED && directory->net->host == 0)
        learn_end(directory, from, head->process, &info);
}

void directory_init(struct directory *directory, struct move_coordinator *coordinator)
{
    directory->net = coordinator->net;
    directory->router = coordinator->router;
    directory->proxy = coordinator->proxy;
    directory->coordinator = coordinator;
    directory->shared = coordinator->shared;
    net_on_frame(directory->net, FRAME_PROCESS, on_process, directory);
    net_on_frame(directory->net, FRAME_ENDED, on_process, directory);
    net_on_host_lost(directory->net, on_host_lost, directory);
}
