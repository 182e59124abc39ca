/* See directory.h. */
#include "directory.h"

#include <stdio.h>
#include <string.h>

#include "arrival.h"
#include "hosts.h"
#include "processes.h"

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
            link_send(&net->links[host], FRAME_PROCESS, process, host, &info, sizeof(info));
}

/* A process of another host. Of one that is here, or is just arriving, the board knows more than the leader. */
static void learn(struct directory *directory, uint32_t process, const struct process_info *info)
{
    struct location *location = &directory->window->locations[process];
    struct place place = {.state = (uint8_t)info->state, .slot = NO_SLOT, .tile = (uint8_t)info->tile};

    if (info->state > PLACE_LOST || net_is_here(directory->net, process) || directory->mirror->arriving[process] ||
        (info->state == PLACE_RUNNING && net_host_of_tile(directory->net, info->tile) == directory->net->host))
        return;
    if (info->state == PLACE_FREE) {
        endpoint_clear(directory->window, process);
        mirror_clear(directory->mirror, process);
    }
    processes_learn(location, info);
    window_commit(directory->window, process, atomic_load(&location->word), place);
    for (uint32_t tile = 0; tile < directory->window->tile_count; tile++)
        window_ring(directory->window, tile); /* threads that wait for a process that has ended must look again */
}

/* The leader: the owner reports that a process has ended or been lost. */
static void learn_end(struct directory *directory, uint32_t host, uint32_t process, const struct process_info *info)
{
    struct location *location = &directory->window->locations[process];
    struct place place = window_place(directory->window, process);

    if (place.state != PLACE_RUNNING || net_host_of_tile(directory->net, place.tile) != host ||
        (info->state != PLACE_ENDED && info->state != PLACE_LOST))
        return; /* it has moved away from there: an old copy has ended */
    location->status = (int32_t)info->status;
    memcpy(location->why, info->why, REASON_SIZE - 1);
    place.state = (uint8_t)info->state;
    transfer_owner_lost(directory->transfer, process);
    window_commit(directory->window, process, atomic_load(&location->word), place);
    directory_announce(directory, process);
}

static void on_host_lost(void *context, uint32_t host)
{
    struct directory *directory = context;
    struct net *net = directory->net;

    relay_reset_credit(directory->relay);
    for (uint32_t other = 1; other < net->hosts; other++)
        if (!net->gone[other])
            net_send(directory->net, other, FRAME_GONE, 0, NULL, 0);
    transfer_host_gone(directory->transfer, host);
    for (uint32_t tile = 0; tile < directory->window->tile_count; tile++)
        if (net_host_of_tile(directory->net, tile) == host)
            atomic_store(&directory->window->tiles[tile].alive, 0);
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct location *location = &directory->window->locations[process];
        struct place place = window_place(directory->window, process);

        if (place.state != PLACE_RUNNING || net_host_of_tile(directory->net, place.tile) != host)
            continue;
        place.state = PLACE_LOST;
        snprintf(location->why, REASON_SIZE, "host %u has not answered for %d s", host, LOST_MS / 1000);
        window_commit(directory->window, process, atomic_load(&location->word), place);
        mirror_clear(directory->mirror, process);
    }
}

void directory_serve(struct directory *directory)
{
    struct net *net = directory->net;
    bool *mine = directory->mirror->mine;
    struct process_info info;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        bool come = arrival_has_come(directory->mirror, process), here = net_is_here(directory->net, process);
        uint8_t state = window_place(directory->window, process).state;

        if (directory->mirror->arriving[process] && !come)
            continue; /* it may be arriving just now: READY goes first */
        if (mine[process] && !here && state != PLACE_RUNNING)
            relay_flush(directory->relay); /* its last messages precede the report of its end */
        if (net->host == 0 && transfer_is_moving(directory->transfer, process) && state != PLACE_RUNNING)
            transfer_owner_lost(directory->transfer, process);
        if (net->host == 0 && !transfer_is_moving(directory->transfer, process))
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

void directory_init(struct directory *directory, struct transfer *transfer)
{
    directory->net = transfer->net;
    directory->relay = transfer->relay;
    directory->mirror = transfer->mirror;
    directory->transfer = transfer;
    directory->window = transfer->window;
    net_on_frame(directory->net, FRAME_PROCESS, on_process, directory);
    net_on_frame(directory->net, FRAME_ENDED, on_process, directory);
    net_on_host_lost(directory->net, on_host_lost, directory);
}
