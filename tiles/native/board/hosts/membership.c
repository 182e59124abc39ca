/* See membership.h. */
#include "membership.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "join.h"

#define JOIN_MS 60000 /* for every host to be there, on a loaded machine */

static void on_frame(void *context, struct channel *channel, const struct frame_head *head, const uint8_t *payload)
{
    struct net *net = context;

    net_handle(net, net->host == 0 ? (uint32_t)(channel - net->channels) : 0, head, payload);
}

static bool is_over(int64_t since, int ms)
{
    return shared_now() - since > ms * 1000000ll;
}

static int read_layout(struct net *net, const char *layout)
{
    for (net->hosts = 0; net->hosts < HOST_MAX && *layout; layout += *layout == ',') {
        char *end;

        net->tiles[net->hosts++] = (uint32_t)strtoul(layout, &end, 10);
        if (end == layout || (*end && *end != ',') || net->tiles[net->hosts - 1] < 1)
            return -EINVAL;
        layout = end;
    }
    return *layout ? -E2BIG : 0;
}

int membership_start(struct net *net, uint32_t host, const char *layout, const char *leader)
{
    struct shared_memory *shared = net->shared;
    uint32_t total = 0;
    int error;

    net->host = host;
    if (!layout)
        return 0;
    error = read_layout(net, layout);
    if (error == 0)
        error = host >= net->hosts ? -EINVAL : join_configure(net, leader);
    for (uint32_t other = 0; error == 0 && other < net->hosts; other++) {
        shared->first_tile += other < host ? net->tiles[other] : 0;
        total += net->tiles[other];
        error = channel_start(&net->channels[other]);
    }
    if (error < 0 || total != shared->tile_count)
        return error < 0 ? error : -EINVAL;
    shared->here = net->tiles[host];
    return host == 0 ? join_listen(net) : 0;
}

static void say_leader_has_ended(void)
{
    fprintf(stderr, "wherry-tiles: host 0, the name server, has ended; the processes here end with it\n");
}

int membership_wait_for_all(struct net *net)
{
    int64_t deadline = shared_now() + JOIN_MS * 1000000ll;
    int error = 0; /* of a follower: its last try to reach the leader */

    for (uint32_t host = 0; host < net->hosts; ) {
        bool there = net->hosts == 1 || host == net->host || (net->host != 0 && host != 0) ||
                     net->channels[host].fd >= 0;

        host += there;
        if (there)
            continue;
        if (shared_now() > deadline) {
            if (error == -ECONNREFUSED)
                say_leader_has_ended();
            return -ETIMEDOUT;
        }
        if (net->host == 0) {
            join_accept(net);
            join_serve(net);
        } else {
            error = join_leader(net);
        }
        usleep(5000);
    }
    return 0;
}

int membership_poll(struct net *net, struct pollfd *fds)
{
    int count = 0;

    if (net->hosts == 1)
        return 0;
    fds[count++] = (struct pollfd){net->listen_fd, POLLIN, 0};
    for (uint32_t host = 0; host < net->hosts; host++)
        fds[count++] = (struct pollfd){
            net->channels[host].fd, (short)(POLLIN | (channel_wants_to_write(&net->channels[host]) ? POLLOUT : 0)), 0};
    for (int i = 0; i < HANDSHAKE_MAX; i++)
        fds[count++] = (struct pollfd){net->handshakes[i].since ? net->handshakes[i].fd : -1, POLLIN, 0};
    return count;
}

static void lose_host(struct net *net, uint32_t host)
{
    net->gone[host] = true;
    if (net->host_lost)
        net->host_lost(net->host_lost_context, host);
}

/* Without the leader the owner of a process is unknown, so none may run. A refused connection: its board has ended. */
static void check_leader(struct net *net)
{
    struct channel *channel = &net->channels[0];
    int error = channel->fd < 0 ? join_leader(net) : 0;

    if (error == -ECONNREFUSED)
        say_leader_has_ended();
    else if (is_over(channel->answered, ALONE_MS))
        fprintf(stderr, "wherry-tiles: host 0, the name server, has not answered for %d s; the processes here end\n",
                ALONE_MS / 1000);
    else
        return;
    net->stopping = net->leader_lost = true;
}

static void check_channels(struct net *net)
{
    for (uint32_t host = 0; host < net->hosts; host++)
        if (net->channels[host].fd >= 0 && is_over(net->channels[host].heard, SILENT_MS))
            channel_disconnect(&net->channels[host]);
    if (net->host != 0) {
        check_leader(net);
        return;
    }
    for (uint32_t host = 1; host < net->hosts; host++)
        if (!net->gone[host] && is_over(net->channels[host].heard, LOST_MS))
            lose_host(net, host);
}

void membership_serve(struct net *net, const struct pollfd *fds, int count)
{
    if (net->hosts == 1)
        return;
    if (count && fds[0].revents)
        join_accept(net);
    join_serve(net);
    for (int at = 1; at < count && at <= (int)net->hosts; at++) {
        struct channel *channel = &net->channels[at - 1];

        if (fds[at].revents & POLLOUT && channel->fd == fds[at].fd)
            channel_write(channel);
        if (fds[at].revents & (POLLIN | POLLHUP | POLLERR) && channel->fd >= 0 && channel->fd == fds[at].fd)
            channel_read(channel, on_frame, net);
    }
    check_channels(net);
    if (net->host != 0) /* should this board stand still from here on, its tiles know when to end without it */
        atomic_store(&net->shared->lease, net->channels[0].answered + ALONE_MS * 1000000ll);
}

void membership_stop(struct net *net)
{
    int64_t deadline = shared_now() + HELLO_MS * 1000000ll;

    for (uint32_t host = 1; net->host == 0 && host < net->hosts; host++) {
        channel_send(&net->channels[host], FRAME_DOWN, 0, host, NULL, 0);
        while (channel_wants_to_write(&net->channels[host]) && shared_now() < deadline)
            channel_write(&net->channels[host]);
        shutdown(net->channels[host].fd, SHUT_WR);
    }
}
