/* The boards of the other hosts: who they are, what they say; see net.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "board.h"

#define JOIN_MS 20000 /* for every host to be there, on a loaded machine */
#define HELLO_MS 1000
#define SECRET_MIN 16 /* bytes: fewer could be tried out with what is overheard */
#define REPORT_MS 500

bool net_is_here(const struct board *board, uint32_t process)
{
    struct place place = window_place(board->window, process);

    return place.state == PLACE_RUNNING && net_host_of_tile(board, place.tile) == board->net.host;
}

uint32_t net_host_of_tile(const struct board *board, uint32_t tile)
{
    uint32_t host = 0;

    for (uint32_t end = board->net.tiles[0]; tile >= end && host + 1 < board->net.hosts; )
        end += board->net.tiles[++host];
    return host;
}

void net_send(struct board *board, uint32_t host, enum frame_kind kind, uint32_t process, const void *payload,
              size_t size)
{
    struct frame_head head = {.size = (uint32_t)size, .kind = (uint16_t)kind, .process = (uint8_t)process};

    if (host == board->net.host)
        net_handle(board, host, &head, payload);
    else
        link_send(&board->net.links[board->net.host == 0 ? host : 0], kind, process, host, payload, size);
}

static void describe(const struct board *board, uint32_t process, struct news *news)
{
    const struct location *location = &board->window->locations[process];
    struct place place = window_place(board->window, process);

    memset(news, 0, sizeof(*news));
    news->state = place.state;
    news->tile = place.tile;
    news->status = (uint32_t)location->status;
    news->moves = atomic_load(&location->moves);
    news->rank = location->rank;
    news->ranks = location->ranks;
    memcpy(news->members, location->members, sizeof(news->members));
    memcpy(news->why, location->why, sizeof(news->why));
    memcpy(news->program, location->program, sizeof(news->program));
}

void net_announce(struct board *board, uint32_t process)
{
    struct net *net = &board->net;
    struct news news;

    if (net->host != 0)
        return;
    describe(board, process, &news);
    if (memcmp(&news, &net->told[process], sizeof(news)) == 0)
        return;
    net->told[process] = news;
    for (uint32_t host = 1; host < net->hosts; host++)
        if (!net->gone[host])
            link_send(&net->links[host], FRAME_LOCATION, process, host, &news, sizeof(news));
}

void net_learn_facts(struct location *location, const struct news *news)
{
    location->status = (int32_t)news->status;
    location->rank = news->rank % TILE_MAX;
    location->ranks = news->ranks <= TILE_MAX ? news->ranks : 1;
    for (int rank = 0; rank < TILE_MAX; rank++)
        location->members[rank] = news->members[rank] % PROCESS_MAX;
    memcpy(location->why, news->why, REASON_SIZE - 1);
    memcpy(location->program, news->program, NAME_SIZE - 1);
    atomic_store(&location->moves, news->moves);
}

/* Of a process of another host. What is ours, or is just coming or going, we know better. */
static void learn(struct board *board, uint32_t process, const struct news *news)
{
    struct location *location = &board->window->locations[process];
    struct place place = {.state = (uint8_t)news->state, .slot = NO_SLOT, .tile = (uint8_t)news->tile};

    if (news->state > PLACE_LOST || net_is_here(board, process) || board->net.arriving[process] ||
        (news->state == PLACE_RUNNING && net_host_of_tile(board, news->tile) == board->net.host))
        return;
    if (news->state == PLACE_FREE) {
        endpoint_clear(board->window, process);
        relay_clear(board, process);
    }
    net_learn_facts(location, news);
    window_commit(board->window, process, atomic_load(&location->word), place);
    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        window_ring(board->window, tile); /* who waits for one that has ended waits in vain */
}

/* The leader: the owner says that a process has ended or been lost. */
static void learn_end(struct board *board, uint32_t host, uint32_t process, const struct news *news)
{
    struct location *location = &board->window->locations[process];
    struct place place = window_place(board->window, process);

    if (place.state != PLACE_RUNNING || net_host_of_tile(board, place.tile) != host ||
        (news->state != PLACE_ENDED && news->state != PLACE_LOST))
        return; /* it has moved away from there: the end of a copy is no end */
    location->status = (int32_t)news->status;
    memcpy(location->why, news->why, REASON_SIZE - 1);
    place.state = (uint8_t)news->state;
    transfer_owner_lost(board, process);
    window_commit(board->window, process, atomic_load(&location->word), place);
    net_announce(board, process);
}

/* The others report and ask; it is the leader who says. */
static bool is_for_leader(uint32_t kind)
{
    static const uint32_t kinds = 1u << FRAME_PARCEL | 1u << FRAME_DELIVERED | 1u << FRAME_ENDED | 1u << FRAME_STATE |
                                  1u << FRAME_READY | 1u << FRAME_REFUSED | 1u << FRAME_MOVED | 1u << FRAME_WISH |
                                  1u << FRAME_REPORT | 1u << FRAME_OFFER | 1u << FRAME_WANT | 1u << FRAME_PAGES |
                                  1u << FRAME_PIECE | 1u << FRAME_RUNS;

    return kinds >> kind & 1;
}

void net_handle(struct board *board, uint32_t from, const struct frame_head *head, const uint8_t *payload)
{
    struct parcel parcel;
    struct order order = {0};
    struct news news = {0};

    if (board->net.host == 0 && from != 0 && !is_for_leader(head->kind))
        return;
    if (head->size == sizeof(news))
        memcpy(&news, payload, sizeof(news));
    if (head->size == sizeof(order))
        memcpy(&order, payload, sizeof(order));
    order.why[REASON_SIZE - 1] = 0;
    switch (head->kind) {
    case FRAME_PARCEL:
        if (head->size < sizeof(parcel))
            return;
        memcpy(&parcel, payload, sizeof(parcel));
        if (parcel.size != head->size - sizeof(parcel) || !relay_is_valid(&parcel))
            return;
        if (board->net.host != 0 && (net_is_here(board, head->process) || board->net.arriving[head->process]))
            relay_deliver(board, head->process, &parcel, payload + sizeof(parcel));
        else
            relay_route(board, head->process, &parcel, payload + sizeof(parcel));
        break;
    case FRAME_DELIVERED:
        relay_delivered(board, head->process, head->host);
        break;
    case FRAME_LOCATION:
        if (head->size == sizeof(struct news) && board->net.host != 0)
            learn(board, head->process, &news);
        break;
    case FRAME_ENDED:
        if (head->size == sizeof(struct news) && board->net.host == 0)
            learn_end(board, from, head->process, &news);
        break;
    case FRAME_REPORT:
        if (board->net.host == 0 && head->size == sizeof(struct report))
            memcpy(&board->net.reports[from], payload, sizeof(struct report));
        break;
    case FRAME_DOWN:
        board->stopping = true;
        break;
    case FRAME_GONE:
        relay_forgive(board);
        break;
    case FRAME_NOTHING:
        break;
    case FRAME_END:
        if (head->size == sizeof(struct order))
            names_end_process(board, head->process, (int)order.mode, order.why);
        break;
    default:
        transfer_handle(board, from, head, payload);
    }
}

static void on_frame(void *context, struct link *link, const struct frame_head *head, const uint8_t *payload)
{
    struct board *board = context;

    net_handle(board, board->net.host == 0 ? (uint32_t)(link - board->net.links) : 0, head, payload);
}

/* A process with everything fits in; without the right to more than the system's limit, what that allows. */
static void set_room(int fd)
{
    const int room = FRAME_MAX;

    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
}

/*
 * TCP begins with 14 KB at once and doubles that with each round trip. Of a process that is sent in one go, the time
 * until all may be under way would be downtime: half a millisecond and more. So both ways are widened before anybody
 * needs them, once; a connection that was idle stays so where the system lets it (tcp_slow_start_after_idle).
 */
static void connected(struct link *link, int fd, uint64_t received)
{
    static uint8_t nothing[USER_SIZE];
    const struct iovec part = {nothing, sizeof(nothing)};
    bool first = link->sent == 0;

    link_connect(link, fd, received);
    if (first)
        link_send_lent(link, FRAME_NOTHING, 0, 0, "", 0, &part, 1);
}

static void set_options(int fd)
{
    const int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

static void set_timeout(int fd, int ms)
{
    const struct timeval limit = {ms / 1000, ms % 1000 * 1000};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static bool is_over(int64_t since, int ms)
{
    return window_now() - since > ms * 1000000ll;
}

static bool is_same_build(const struct hello *one, const struct hello *two)
{
    return one->build == two->build && one->xfeatures == two->xfeatures && one->xsize == two->xsize;
}

static void drop(struct guest *guest)
{
    close(guest->fd);
    guest->since = 0;
}

/* Who connects has to greet, and may take his time: he is not waited for, and when too many do, the oldest has to go. */
static void accept_guest(struct net *net)
{
    struct guest *guest = &net->guests[0];
    int fd = accept4(net->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    for (int i = 1; i < GUEST_MAX; i++)
        if (net->guests[i].since < guest->since)
            guest = &net->guests[i];
    if (guest->since)
        drop(guest);
    *guest = (struct guest){.fd = fd, .since = window_now()};
    set_options(fd);
    if (hello_challenge(fd, guest->nonce) < 0)
        drop(guest);
}

/* It has greeted. */
static void admit(struct board *board, struct guest *guest)
{
    const struct greeting *other = &guest->greeting;
    struct net *net = &board->net;
    uint32_t host = other->hello.host;
    bool known = hello_check(&net->secret, other, guest->nonce) == 0 && host && host < net->hosts && !net->gone[host];

    if (known && !is_same_build(&other->hello, &net->hello)) {
        fprintf(stderr, "wherry-tiles: the board of host %u is of another build, or its CPU is another\n", host);
        known = false;
    }
    if (!known || hello_answer(guest->fd, &net->secret, &net->hello, net->links[host].received, other, guest->nonce) < 0) {
        drop(guest);
        return;
    }
    connected(&net->links[host], guest->fd, other->head.received);
    guest->since = 0;
}

static void hear(struct board *board, struct guest *guest)
{
    size_t left = sizeof(guest->greeting) - guest->count;
    ssize_t count = recv(guest->fd, (uint8_t *)&guest->greeting + guest->count, left, MSG_DONTWAIT);

    if (count < 0 && (errno == EAGAIN || errno == EINTR) && !is_over(guest->since, HELLO_MS))
        return;
    guest->count += count > 0 ? (size_t)count : 0;
    if (count <= 0)
        drop(guest);
    else if (guest->count == sizeof(guest->greeting))
        admit(board, guest);
}

static void serve_guests(struct board *board)
{
    for (int i = 0; i < GUEST_MAX; i++)
        if (board->net.guests[i].since)
            hear(board, &board->net.guests[i]);
}

/* Returns 0 or negative errno. */
static int join_leader(struct board *board)
{
    struct net *net = &board->net;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error;
    struct greeting leader;

    if (fd < 0)
        return -errno;
    set_room(fd); /* before the connection, which agrees on a window */
    set_options(fd);
    set_timeout(fd, HELLO_MS);
    error = connect(fd, (const struct sockaddr *)&net->leader, sizeof(net->leader)) < 0 ? -errno : 0;
    if (error == 0)
        error = hello_join(fd, &net->secret, &net->hello, net->links[0].received, &leader);
    if (error == 0)
        connected(&net->links[0], fd, leader.head.received);
    else
        close(fd);
    return error;
}

static int listen_for_hosts(struct net *net)
{
    const int on = 1;

    net->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (net->listen_fd < 0)
        return -errno;
    setsockopt(net->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    set_room(net->listen_fd);
    if (bind(net->listen_fd, (const struct sockaddr *)&net->leader, sizeof(net->leader)) < 0 ||
        listen(net->listen_fd, HOST_MAX) < 0 ||
        getsockname(net->listen_fd, (struct sockaddr *)&net->leader, &(socklen_t){sizeof(net->leader)}) < 0)
        return -errno;
    printf("{\"event\": \"listening\", \"port\": %u}\n", ntohs(net->leader.sin_port));
    fflush(stdout);
    return 0;
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

static int read_address(struct net *net, const char *text)
{
    const char *colon = strrchr(text, ':');
    char host[INET_ADDRSTRLEN] = "";

    if (!colon || (size_t)(colon - text) >= sizeof(host))
        return -EINVAL;
    memcpy(host, text, (size_t)(colon - text));
    net->leader.sin_family = AF_INET;
    net->leader.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    return inet_pton(AF_INET, host, &net->leader.sin_addr) == 1 && (net->leader.sin_port || net->host == 0) ? 0 : -EINVAL;
}

/* Out of the environment, which the tiles inherit. */
static int take_secret(struct net *net)
{
    const char *secret = getenv("WHERRY_TILES_SECRET");

    net->secret.size = secret ? strnlen(secret, SECRET_MAX) : 0;
    if (net->secret.size < SECRET_MIN)
        return -EACCES;
    memcpy(net->secret.bytes, secret, net->secret.size);
    return unsetenv("WHERRY_TILES_SECRET") < 0 ? -errno : 0;
}

int net_start(struct board *board, const char *layout, const char *address)
{
    struct net *net = &board->net;
    struct window *window = board->window;
    uint32_t total = 0;
    int error;

    net->listen_fd = -1;
    window_set_gateway(board->event_fd);
    if (!layout) {
        net->hosts = 1;
        net->tiles[0] = window->tile_count;
        return 0;
    }
    error = read_layout(net, layout);
    if (error == 0)
        error = !address || net->host >= net->hosts ? -EINVAL : read_address(net, address);
    if (error == 0)
        error = take_secret(net);
    for (uint32_t host = 0; error == 0 && host < net->hosts; host++) {
        window->first_tile += host < net->host ? net->tiles[host] : 0;
        total += net->tiles[host];
        error = link_start(&net->links[host]);
    }
    if (error < 0 || total != window->tile_count)
        return error < 0 ? error : -EINVAL;
    window->here = net->tiles[net->host];
    net->hello = (struct hello){net->host, window->build, window->xfeatures, window->xsize};
    clock_identify(&net->clock);
    return net->host == 0 ? listen_for_hosts(net) : 0;
}

int net_wait_for_all(struct board *board)
{
    int64_t deadline = window_now() + JOIN_MS * 1000000ll;
    struct net *net = &board->net;

    for (uint32_t host = 0; host < net->hosts; ) {
        bool there = net->hosts == 1 || host == net->host || (net->host != 0 && host != 0) || net->links[host].fd >= 0;

        host += there;
        if (there)
            continue;
        if (window_now() > deadline)
            return -ETIMEDOUT;
        if (net->host == 0) {
            accept_guest(net);
            serve_guests(board);
        } else {
            join_leader(board);
        }
        usleep(5000);
    }
    return 0;
}

int net_poll(struct board *board, struct pollfd *fds)
{
    struct net *net = &board->net;
    int count = 0;

    if (net->hosts == 1)
        return 0;
    fds[count++] = (struct pollfd){net->listen_fd, POLLIN, 0};
    for (uint32_t host = 0; host < net->hosts; host++)
        fds[count++] = (struct pollfd){net->links[host].fd,
                                       (short)(POLLIN | (link_wants_to_write(&net->links[host]) ? POLLOUT : 0)), 0};
    for (int i = 0; i < GUEST_MAX; i++)
        fds[count++] = (struct pollfd){net->guests[i].since ? net->guests[i].fd : -1, POLLIN, 0};
    return count;
}

static void lose_host(struct board *board, uint32_t host)
{
    struct net *net = &board->net;

    net->gone[host] = true;
    relay_forgive(board);
    for (uint32_t other = 1; other < net->hosts; other++)
        if (!net->gone[other])
            net_send(board, other, FRAME_GONE, 0, NULL, 0);
    transfer_host_gone(board, host);
    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        if (net_host_of_tile(board, tile) == host)
            atomic_store(&board->window->tiles[tile].alive, 0);
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct location *location = &board->window->locations[process];
        struct place place = window_place(board->window, process);

        if (place.state != PLACE_RUNNING || net_host_of_tile(board, place.tile) != host)
            continue;
        place.state = PLACE_LOST;
        snprintf(location->why, REASON_SIZE, "host %u has not answered for %d s", host, LOST_MS / 1000);
        window_commit(board->window, process, atomic_load(&location->word), place);
        relay_clear(board, process);
    }
}

/* Without the leader nobody can say who has a process, so none goes on. Where its board was, nobody listens: it has ended. */
static void tend_leader(struct board *board)
{
    struct link *link = &board->net.links[0];
    int error = link->fd < 0 ? join_leader(board) : 0;

    if (error == -ECONNREFUSED)
        fprintf(stderr, "wherry-tiles: host 0, the name server, has ended; the processes here end with it\n");
    else if (is_over(link->answered, ALONE_MS))
        fprintf(stderr, "wherry-tiles: host 0, the name server, has not answered for %d s; the processes here end\n",
                ALONE_MS / 1000);
    else
        return;
    board->stopping = board->net.alone = true;
}

static void tend_links(struct board *board)
{
    struct net *net = &board->net;

    for (uint32_t host = 0; host < net->hosts; host++)
        if (net->links[host].fd >= 0 && is_over(net->links[host].heard, SILENT_MS))
            link_disconnect(&net->links[host]);
    if (net->host != 0) {
        tend_leader(board);
        return;
    }
    for (uint32_t host = 1; host < net->hosts; host++)
        if (!net->gone[host] && is_over(net->links[host].heard, LOST_MS))
            lose_host(board, host);
}

/* What of ours has ended, and, of the leader, what the others do not know yet. */
static void tell_news(struct board *board)
{
    struct net *net = &board->net;
    struct news news;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        bool come = mirror_has_come(board, process), here = net_is_here(board, process);
        uint8_t state = window_place(board->window, process).state;

        if (net->arriving[process] && !come)
            continue; /* it may be coming just now: first the news of that */
        if (net->mine[process] && !here && state != PLACE_RUNNING)
            relay_flush(board); /* what it said before its end goes before the news of that */
        if (net->host == 0 && transfer_is_moving(board, process) && state != PLACE_RUNNING)
            transfer_owner_lost(board, process);
        if (net->host == 0 && !transfer_is_moving(board, process))
            net_announce(board, process);
        if (net->mine[process] && !here && (state == PLACE_ENDED || state == PLACE_LOST) && net->host != 0) {
            describe(board, process, &news);
            net_send(board, 0, FRAME_ENDED, process, &news, sizeof(news));
        }
        net->mine[process] = here;
    }
}

void net_serve(struct board *board, const struct pollfd *fds, int count)
{
    struct net *net = &board->net;

    if (net->hosts == 1)
        return;
    if (count && fds[0].revents)
        accept_guest(net);
    serve_guests(board);
    for (int at = 1; at < count && at <= (int)net->hosts; at++) {
        struct link *link = &net->links[at - 1];

        if (fds[at].revents & POLLOUT && link->fd == fds[at].fd)
            link_write(link);
        if (fds[at].revents & (POLLIN | POLLHUP | POLLERR) && link->fd >= 0 && link->fd == fds[at].fd)
            link_read(link, on_frame, board);
    }
    tend_links(board);
    if (net->host != 0) /* should we stand still from here on, they know when to end without us */
        atomic_store(&board->window->lease, net->links[0].answered + ALONE_MS * 1000000ll);
    if (net->host != 0 && window_now() - net->reported > REPORT_MS * 1000000ll) {
        report_make(board, &net->reports[net->host]);
        net_send(board, 0, FRAME_REPORT, 0, &net->reports[net->host], sizeof(struct report));
        net->reported = window_now();
    }
    mirror_serve(board);
    relay_serve(board);
    tell_news(board);
}

void net_stop(struct board *board)
{
    struct net *net = &board->net;
    int64_t deadline = window_now() + HELLO_MS * 1000000ll;

    for (uint32_t host = 1; net->host == 0 && host < net->hosts; host++) {
        link_send(&net->links[host], FRAME_DOWN, 0, host, NULL, 0);
        while (link_wants_to_write(&net->links[host]) && window_now() < deadline)
            link_write(&net->links[host]);
        shutdown(net->links[host].fd, SHUT_WR);
    }
}
