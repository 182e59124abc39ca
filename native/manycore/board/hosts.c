/* See hosts.h. */
#include "hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "join.h"

#define JOIN_MS 20000 /* for every host to be there, on a loaded machine */

static void on_frame(void *context, struct link *link, const struct frame_head *head, const uint8_t *payload)
{
    struct net *net = context;

    net_handle(net, net->host == 0 ? (uint32_t)(link - net->links) : 0, head, payload);
}

static bool is_over(int64_t since, int ms)
{
    return window_now() - since > ms * 1000000ll;
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

int hosts_start(struct net *net, uint32_t host, const char *layout, const char *leader)
{
    struct window *window = net->window;
    uint32_t total = 0;
    int error;

    net->host = host;
    if (!layout)
        return 0;
    error = read_layout(net, layout);
    if (error == 0)
        error = host >= net->hosts ? -EINVAL : join_configure(net, leader);
    for (uint32_t other = 0; error == 0 && other < net->hosts; other++) {
        window->first_tile += other < host ? net->tiles[other] : 0;
        total += net->tiles[other];
        error = link_start(&net->links[other]);
    }
    if (error < 0 || total != window->tile_count)
        return error < 0 ? error : -EINVAL;
    window->here = net->tiles[host];
    return host == 0 ? join_listen(net) : 0;
}

static void say_leader_has_ended(void)
{
    fprintf(stderr, "wherry-tiles: host 0, the name server, has ended; the processes here end with it\n");
}

int hosts_wait_for_all(struct net *net)
{
    int64_t deadline = window_now() + JOIN_MS * 1000000ll;
    int error = 0; /* of a follower: its last try to reach the leader */

    for (uint32_t host = 0; host < net->hosts; ) {
        bool there = net->hosts == 1 || host == net->host || (net->host != 0 && host != 0) || net->links[host].fd >= 0;

        host += there;
        if (there)
            continue;
        if (window_now() > deadline) {
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

int hosts_poll(struct net *net, struct pollfd *fds)
{
    int count = 0;

    if (net->hosts == 1)
        return 0;
    fds[count++] = (struct pollfd){net->listen_fd, POLLIN, 0};
    for (uint32_t host = 0; host < net->hosts; host++)
        fds[count++] = (struct pollfd){net->links[host].fd,
                                       (short)(POLLIN | (link_wants_to_write(&net->links[host]) ? POLLOUT : 0)), 0};
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

/* Without the leader nobody knows who has a process, so none may go on. A refused connection: its board has ended. */
static void check_leader(struct net *net)
{
    struct link *link = &net->links[0];
    int error = link->fd < 0 ? join_leader(net) : 0;

    if (error == -ECONNREFUSED)
        say_leader_has_ended();
    else if (is_over(link->answered, ALONE_MS))
        fprintf(stderr, "wherry-tiles: host 0, the name server, has not answered for %d s; the processes here end\n",
                ALONE_MS / 1000);
    else
        return;
    net->stopping = net->leader_lost = true;
}

static void check_links(struct net *net)
{
    for (uint32_t host = 0; host < net->hosts; host++)
        if (net->links[host].fd >= 0 && is_over(net->links[host].heard, SILENT_MS))
            link_disconnect(&net->links[host]);
    if (net->host != 0) {
        check_leader(net);
        return;
    }
    for (uint32_t host = 1; host < net->hosts; host++)
        if (!net->gone[host] && is_over(net->links[host].heard, LOST_MS))
            lose_host(net, host);
}

void hosts_serve(struct net *net, const struct pollfd *fds, int count)
{
    if (net->hosts == 1)
        return;
    if (count && fds[0].revents)
        join_accept(net);
    join_serve(net);
    for (int at = 1; at < count && at <= (int)net->hosts; at++) {
        struct link *link = &net->links[at - 1];

        if (fds[at].revents & POLLOUT && link->fd == fds[at].fd)
            link_write(link);
        if (fds[at].revents & (POLLIN | POLLHUP | POLLERR) && link->fd >= 0 && link->fd == fds[at].fd)
            link_read(link, on_frame, net);
    }
    check_links(net);
    if (net->host != 0) /* should this board stand still from here on, its tiles know when to end without it */
        atomic_store(&net->window->lease, net->links[0].answered + ALONE_MS * 1000000ll);
}

void hosts_stop(struct net *net)
{
    int64_t deadline = window_now() + HELLO_MS * 1000000ll;

    for (uint32_t host = 1; net->host == 0 && host < net->hosts; host++) {
        link_send(&net->links[host], FRAME_DOWN, 0, host, NULL, 0);
        while (link_wants_to_write(&net->links[host]) && window_now() < deadline)
            link_write(&net->links[host]);
        shutdown(net->links[host].fd, SHUT_WR);
    }
}
