/*
 * wherry-hold: keeps the frames for a node that is on its way to this host, and hands them over when it is there.
 *
 *   wherry-hold --bridge BRIDGE --tap TAP --mac MAC --address ADDRESS [--limit BYTES]
 *
 * Run inside the network namespace of the destination. Lines on standard input, JSON lines on standard output:
 *
 *                      {"event": "ready"}      the TAP is there, outside the bridge
 *   divert             {"event": "holding"}    the TAP is in the bridge and announces the node's MAC as its own
 *   release PORT       {"event": "released", "frames": N, "bytes": N, "lost": N, "held_us": N}, and then
 *                      {"event": "sent", "at_us": N}   the node's first data went out (CLOCK_MONOTONIC), or
 *                      {"event": "silent"}             it sent none for a second
 *   return NETNS PORT  {"event": "returned", "frames": N, "lost": N}
 *   drop, end of input {"event": "dropped"}
 *   (any time)         {"event": "failed", "error": TEXT}, exit code 1
 *
 *      other hosts -- VXLAN --+                          + - - release: kept frames, in order
 *                             |  BRIDGE                  v
 *      nodes of this host ----+----- TAP -> kept      PORT -- the node
 *
 * A release puts PORT into the bridge and hands over what was kept, and says so; then it takes the TAP out, which the
 * kernel may make wait for milliseconds, and hands over what came to the TAP meanwhile (uncounted): a frame is late at
 * most, never lost, once the announcement has gone round. It is repeated as long as frames are kept: what the source's
 * kernel still sent, before its port was unplugged, may come after the first one and draw the MAC back. PORT is in the
 * bridge first, because the node's kernel answers what it is handed at once, and an answer lost there (to a first ARP)
 * would be missed for a second. The bridge floods what it has for the node until the node's first own frame. A return
 * is the other way to end: the node stays where it was. PORT of the namespace NETNS is put into the bridge there (of
 * the same name) and is handed what was kept and, until the drop, what still comes; nothing is announced or answered
 * any more, as that would draw the MAC back here. `lost` counts what came after the limit was reached. ARP requests for
 * the node are answered in its name.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/ether.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "frame_store.h"
#include "wherry/netdev.h"

enum {
    ANNOUNCE_EVERY_US = 20000,
    SILENT_MS = 1000, /* a node that has sent nothing by then has no peer that waits, or is much too late */
    HEADERS_MAX = 256,
    FRAMES_A_TURN = 256, /* then commands have their turn: a peer may send without end */
};

struct hold {
    const char *bridge, *tap;
    uint8_t mac[ETH_ALEN];
    struct in_addr address;
    struct frames frames;
    int tap_fd, watch_fd, back_fd; /* back_fd: the port that frames go back to; -1 before */
    bool holding;
    int64_t since_us, announced_us;
    uint64_t count, bytes, lost;
};

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int fail(const char *what, const char *object, int error)
{
    printf("{\"event\": \"failed\", \"error\": \"cannot %s %s: %s\"}\n", what, object, strerror(-error));
    return error;
}

struct arp_frame {
    struct ether_header ethernet;
    struct ether_arp arp;
};

/* In the node's name, written into the TAP: every bridge on its way learns that the MAC is here. */
static int say_arp(const struct hold *hold, uint16_t operation, const uint8_t *to, const uint8_t *about)
{
    struct arp_frame frame = {
        .ethernet.ether_type = htons(ETHERTYPE_ARP),
        .arp.ea_hdr = {htons(ARPHRD_ETHER), htons(ETHERTYPE_IP), ETH_ALEN, sizeof(hold->address), htons(operation)},
    };

    memcpy(frame.ethernet.ether_dhost, to, ETH_ALEN);
    memcpy(frame.ethernet.ether_shost, hold->mac, ETH_ALEN);
    memcpy(frame.arp.arp_sha, hold->mac, ETH_ALEN);
    memcpy(frame.arp.arp_spa, &hold->address, sizeof(hold->address));
    if (operation == ARPOP_REPLY)
        memcpy(frame.arp.arp_tha, to, ETH_ALEN);
    memcpy(frame.arp.arp_tpa, about, sizeof(hold->address));
    return write(hold->tap_fd, &frame, sizeof(frame)) < 0 ? -errno : 0;
}

/* Gratuitous ARP (RFC 5227): a request for the own address, to everyone. */
static int announce(struct hold *hold)
{
    static const uint8_t everyone[ETH_ALEN] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

    hold->announced_us = now_us();
    return say_arp(hold, ARPOP_REQUEST, everyone, (const uint8_t *)&hold->address);
}

/* A peer that gets no answer for 3 s gives the node up and drops what it has for it, so a long hold must answer. */
static bool answer_arp(const struct hold *hold, const uint8_t *bytes, size_t length)
{
    struct arp_frame frame;

    if (length < sizeof(frame))
        return false;
    memcpy(&frame, bytes, sizeof(frame));
    if (frame.ethernet.ether_type != htons(ETHERTYPE_ARP) || frame.arp.arp_op != htons(ARPOP_REQUEST) ||
        memcmp(frame.arp.arp_tpa, &hold->address, sizeof(hold->address)) != 0 ||
        memcmp(frame.arp.arp_sha, hold->mac, ETH_ALEN) == 0)
        return false;
    say_arp(hold, ARPOP_REPLY, frame.arp.arp_sha, frame.arp.arp_spa);
    return true;
}

/* For the node or for everyone (the first bit of a group address is set), but not the node's own, flooded to us. */
static bool is_for_node(const struct hold *hold, const uint8_t *frame, size_t length)
{
    return length >= sizeof(struct ether_header) && memcmp(frame + ETH_ALEN, hold->mac, ETH_ALEN) != 0 &&
           (frame[0] & 1 || memcmp(frame, hold->mac, ETH_ALEN) == 0);
}

/* Keeps a frame when it is for the node; answers an ARP request in the node's name, unless frames go back to the node. */
static void keep(struct hold *hold, const uint8_t *frame, size_t length)
{
    if (hold->back_fd < 0 && answer_arp(hold, frame, length))
        return;
    if (is_for_node(hold, frame, length) && frames_keep(&hold->frames, frame, length))
        hold->lost++;
}

/* Keeps what the TAP has, at most so many frames. */
static int take_in(struct hold *hold, int most)
{
    uint8_t frame[FRAME_MAX];
    ssize_t length = 0;

    while (most-- > 0 && (length = read(hold->tap_fd, frame, sizeof(frame))) > 0)
        keep(hold, frame, (size_t)length);
    if (length < 0 && errno != EAGAIN && errno != EINTR)
        return fail("read from", hold->tap, -errno);
    return 0;
}

static void hand_over(struct hold *hold, int port)
{
    const uint8_t *frame;
    size_t length;

    while ((length = frames_take(&hold->frames, &frame))) {
        if (send(port, frame, length, 0) < 0) {
            hold->lost++;
            continue;
        }
        hold->count++;
        hold->bytes += length;
    }
}

static int divert(struct hold *hold)
{
    int error = netdev_set_bridge(hold->tap, hold->bridge, true);

    if (error)
        return fail("attach to the bridge", hold->tap, error);
    hold->since_us = now_us();
    hold->holding = true;
    error = announce(hold);
    if (error)
        return fail("announce the node from", hold->tap, error);
    puts("{\"event\": \"holding\"}");
    return 0;
}

/* When a frame that is there was received, CLOCK_MONOTONIC; 0 when none is there, or it carries no data of the node. */
static int64_t next_data_us(int fd)
{
    uint8_t frame[HEADERS_MAX], control[CMSG_SPACE(sizeof(struct timespec))];
    struct sockaddr_ll from;
    struct iovec part = {.iov_base = frame, .iov_len = sizeof(frame)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control),
                             .msg_name = &from,
                             .msg_namelen = sizeof(from)};
    ssize_t length = recvmsg(fd, &message, 0);
    struct cmsghdr *about = length < 0 ? NULL : CMSG_FIRSTHDR(&message);
    struct timespec stamp, now;

    if (!about || about->cmsg_type != SO_TIMESTAMPNS || from.sll_pkttype == PACKET_OUTGOING ||
        !frame_has_data(frame, (size_t)length))
        return 0;
    memcpy(&stamp, CMSG_DATA(about), sizeof(stamp));
    clock_gettime(CLOCK_REALTIME, &now);
    return now_us() - ((int64_t)(now.tv_sec - stamp.tv_sec) * 1000000 + (now.tv_nsec - stamp.tv_nsec) / 1000);
}

/* No time between `since` and now but one that a set clock has moved; 0 stays 0. */
static int64_t within(int64_t at, int64_t since)
{
    int64_t now = now_us();

    return !at ? 0 : at < since ? since : at > now ? now : at;
}

/* Reports when the node first sent data of a program. A peer that waits for the node waits for that. */
static void tell_first_sent(const struct hold *hold)
{
    struct pollfd wait[2] = {{.fd = hold->watch_fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    int64_t since = now_us(), left = SILENT_MS * 1000, at = 0;

    while (!at && !wait[1].revents && left > 0) {
        if (poll(wait, 2, (int)(left / 1000 + 1)) < 0 && errno != EINTR)
            break;
        if (wait[0].revents)
            at = within(next_data_us(hold->watch_fd), since);
        left = since + SILENT_MS * 1000 - now_us();
    }
    if (at)
        printf("{\"event\": \"sent\", \"at_us\": %" PRId64 "}\n", at);
    else
        puts("{\"event\": \"silent\"}");
}

static int release(struct hold *hold, const char *name)
{
    int port = netdev_open_sender(name), error;

    if (port < 0)
        return fail("open the port", name, port);
    error = netdev_bind_capture(hold->watch_fd, name);
    if (error)
        return fail("watch the port", name, error);
    error = netdev_set_bridge(name, hold->bridge, true);
    if (error)
        return fail("attach to the bridge", name, error);
    error = take_in(hold, NETDEV_QUEUE_FRAMES);
    if (error)
        return error;
    hand_over(hold, port);
    printf("{\"event\": \"released\", \"frames\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"lost\": %" PRIu64
           ", \"held_us\": %" PRId64 "}\n",
           hold->count, hold->bytes, hold->lost, hold->holding ? now_us() - hold->since_us : 0);
    error = netdev_set_bridge(hold->tap, hold->bridge, false);
    if (error)
        (void)fail("detach from the bridge", hold->tap, error);
    else
        error = take_in(hold, NETDEV_QUEUE_FRAMES); /* all: none comes any more */
    hand_over(hold, port);
    if (error)
        return error;
    tell_first_sent(hold);
    return 1;
}

/* The node stays at the port of this name in another namespace. What its peers sent meanwhile is late, not lost. */
static int give_back(struct hold *hold, const char *netns, const char *name)
{
    int error = take_in(hold, NETDEV_QUEUE_FRAMES);

    hold->holding = false;
    if (error)
        return error;
    error = netdev_enter_namespace(netns);
    if (error)
        return fail("enter", netns, error);
    hold->back_fd = netdev_open_sender(name);
    if (hold->back_fd < 0)
        return fail("open the port", name, hold->back_fd);
    error = netdev_set_bridge(name, hold->bridge, true);
    if (error)
        return fail("attach to the bridge", name, error);
    hand_over(hold, hold->back_fd);
    printf("{\"event\": \"returned\", \"frames\": %" PRIu64 ", \"lost\": %" PRIu64 "}\n", hold->count, hold->lost);
    return 0;
}

/* 0: go on; 1: the hold has ended; negative: it failed and printed that. */
static int obey(struct hold *hold, char *line)
{
    char *second;

    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "divert") == 0)
        return divert(hold);
    if (strncmp(line, "release ", 8) == 0)
        return release(hold, line + 8);
    if (strncmp(line, "return ", 7) == 0 && (second = strchr(line + 7, ' '))) {
        *second = '\0';
        return give_back(hold, line + 7, second + 1);
    }
    if (strcmp(line, "drop") == 0) {
        puts("{\"event\": \"dropped\"}");
        return 1;
    }
    return fail("understand", "the line", -EINVAL);
}

/* What is left until it is to be announced again, in milliseconds; -1: it is not. */
static int patience(const struct hold *hold)
{
    int64_t left = hold->announced_us + ANNOUNCE_EVERY_US - now_us();

    return !hold->holding ? -1 : left > 0 ? (int)(left / 1000 + 1) : 0;
}

static int serve(struct hold *hold)
{
    struct pollfd wait[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = hold->tap_fd, .events = POLLIN}};
    char line[512];
    int result = 0;

    while (result == 0) {
        if (poll(wait, 2, patience(hold)) < 0 && errno != EINTR)
            return fail("wait for", hold->tap, -errno);
        if (patience(hold) == 0)
            (void)announce(hold); /* a TAP that takes no more is in nobody's way: the first one counts */
        if (wait[1].revents)
            result = take_in(hold, FRAMES_A_TURN);
        if (result == 0 && hold->back_fd >= 0)
            hand_over(hold, hold->back_fd);
        if (result == 0 && wait[0].revents) {
            if (fgets(line, sizeof(line), stdin))
                result = obey(hold, line);
            else
                result = obey(hold, strcpy(line, "drop"));
        }
    }
    return result;
}

static _Noreturn void usage(void)
{
    fputs("usage: wherry-hold --bridge BRIDGE --tap TAP --mac MAC --address ADDRESS [--limit BYTES]\n", stderr);
    exit(2);
}

static void parse(struct hold *hold, int argc, char **argv)
{
    static const struct option options[] = {{"bridge", required_argument, NULL, 'b'},
                                            {"tap", required_argument, NULL, 't'},
                                            {"mac", required_argument, NULL, 'm'},
                                            {"address", required_argument, NULL, 'a'},
                                            {"limit", required_argument, NULL, 'l'},
                                            {0}};
    const struct ether_addr *mac = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 'b')
            hold->bridge = optarg;
        else if (option == 't')
            hold->tap = optarg;
        else if (option == 'm' && (mac = ether_aton(optarg)))
            memcpy(hold->mac, mac, ETH_ALEN);
        else if (option == 'l')
            hold->frames.limit = strtoull(optarg, NULL, 10);
        else if (option != 'a' || inet_pton(AF_INET, optarg, &hold->address) != 1)
            usage();
    }
    if (optind != argc || !hold->bridge || !hold->tap || !mac || !hold->address.s_addr)
        usage();
}

int main(int argc, char **argv)
{
    struct hold hold = {.frames.limit = 64 << 20, .back_fd = -1};
    int result;

    parse(&hold, argc, argv);
    setvbuf(stdin, NULL, _IONBF, 0); /* a line that stdio had read ahead would not wake poll() */
    setvbuf(stdout, NULL, _IOLBF, 0);
    hold.tap_fd = netdev_open_tap(hold.tap, 0, FRAME_MAX - ETH_HLEN);
    if (hold.tap_fd < 0) {
        fail("make the TAP", hold.tap, hold.tap_fd);
        return 1;
    }
    hold.watch_fd = netdev_open_capture();
    if (hold.watch_fd < 0) {
        fail("open a packet socket for", hold.tap, hold.watch_fd);
        return 1;
    }
    puts("{\"event\": \"ready\"}");
    result = serve(&hold);
    frames_free(&hold.frames);
    close(hold.tap_fd);
    return result < 0;
}
