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
 * The announcement is repeated as long as frames are kept: frames that the source's kernel still sent, before its port
 * was unplugged, may come after the first one and draw the MAC back. In the bridge here the MAC stays the TAP's, even
 * when a frame with it comes by another port.
 *
 * A release hands over the kept frames to groups (broadcasts), puts PORT into the bridge, hands over the others, and
 * prints its line. PORT is in the bridge before those, because the node's kernel answers them at once, and an answer
 * lost there (to a first ARP) would be missed for a second. From then on the bridge itself sends PORT the frames to
 * groups; a copy that the TAP has, too, is dropped. Frames for the node alone still come by the TAP, so that none
 * overtakes a kept one, until the TAP has had nothing for a moment: then the MAC becomes PORT's (hand_on). So each
 * frame comes once, and in order; but frames that are in the TAP in the moment in which PORT joins (of frames to
 * groups), or in which the MAC changes (of others, where a peer has sent without a pause for SETTLE_MS), come behind
 * the frames that PORT has by then. A hold that is killed takes the TAP with it, and the bridge floods frames for the
 * node until the node's next one.
 *
 * A return is the other way to end: the node stays where it was. PORT of the namespace NETNS is put into the bridge
 * there (of the same name) and is handed the kept frames and, until the drop, later ones; nothing is announced or
 * answered any more, as that would draw the MAC back here. `lost` counts the frames after the limit was reached. ARP
 * requests for the node are answered in its name.
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

#include "arp.h"
#include "frame_store.h"
#include "wherry/netdev.h"

enum {
    ANNOUNCE_EVERY_US = 20000,
    SILENT_MS = 1000, /* a node that is silent for so long has no waiting peer, or is much too late */
    FRAMES_A_TURN = 256, /* then commands have their turn: a peer may send without end */
    QUIET_US = 300,      /* without a frame for the node, after which the next one is not expected at once */
    SETTLE_MS = 50,      /* at most until then */
    GROUPS_SHARE = 8,    /* of the limit: so little is for frames to groups */
};

struct hold {
    const char *bridge, *tap;
    struct node node;
    struct frames frames, groups; /* for the node alone; to groups that it may be in */
    int tap_fd, watch_fd, back_fd; /* back_fd: the port that frames go back to; -1 before */
    bool holding, has_groups;      /* has_groups: PORT gets those from the bridge */
    int64_t since_us, announced_us, released_us, sent_us; /* sent_us: of the node's first data after the release; 0 before */
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

static int announce(struct hold *hold)
{
    hold->announced_us = now_us();
    return arp_announce(hold->tap_fd, &hold->node);
}

static bool is_to_group(const uint8_t *frame)
{
    return frame[0] & 1;
}

/* For the node or for everyone, but not the node's own, flooded to us. */
static bool is_for_node(const struct hold *hold, const uint8_t *frame, size_t length)
{
    return length >= sizeof(struct ether_header) && memcmp(frame + ETH_ALEN, hold->node.mac, ETH_ALEN) != 0 &&
           (is_to_group(frame) || memcmp(frame, hold->node.mac, ETH_ALEN) == 0);
}

/* Keeps a frame when it is for the node and PORT has not got it; answers an ARP request in the node's name. */
static void keep(struct hold *hold, const uint8_t *frame, size_t length)
{
    if (!hold->has_groups && arp_answer(hold->tap_fd, &hold->node, frame, length))
        return;
    if (!is_for_node(hold, frame, length) || (is_to_group(frame) && hold->has_groups))
        return;
    if (frames_keep(is_to_group(frame) ? &hold->groups : &hold->frames, frame, length))
        hold->lost++;
}

/* Keeps the frames in the TAP, at most so many. */
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

static void hand_over(struct hold *hold, struct frames *frames, int port)
{
    const uint8_t *frame;
    size_t length;

    while ((length = frames_take(frames, &frame))) {
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
    error = netdev_set_mac(hold->tap, hold->node.mac, true);
    if (error)
        return fail("keep the node's MAC at", hold->tap, error);
    error = announce(hold);
    if (error)
        return fail("announce the node from", hold->tap, error);
    puts("{\"event\": \"holding\"}");
    return 0;
}

/* A frame that went by PORT. */
struct passed {
    uint8_t frame[FRAME_MAX];
    size_t length;
    bool is_out;
    int64_t at_us; /* CLOCK_MONOTONIC */
};

/* Bounds the time by `since` and now, as a set clock may have moved it. */
static int64_t within(int64_t at, int64_t since)
{
    int64_t now = now_us();

    return at < since ? since : at > now ? now : at;
}

/* The next frame that went by PORT; false: there is none. Notes the node's first data. */
static bool next_passed(struct hold *hold, struct passed *passed)
{
    uint8_t control[CMSG_SPACE(sizeof(struct timespec))];
    struct sockaddr_ll from;
    struct iovec part = {.iov_base = passed->frame, .iov_len = sizeof(passed->frame)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control),
                             .msg_name = &from,
                             .msg_namelen = sizeof(from)};
    ssize_t length = recvmsg(hold->watch_fd, &message, 0);
    struct cmsghdr *about = length < 0 ? NULL : CMSG_FIRSTHDR(&message);
    struct timespec stamp, now;

    if (length < 0)
        return false;
    passed->length = (size_t)length;
    passed->is_out = from.sll_pkttype == PACKET_OUTGOING;
    passed->at_us = now_us();
    if (about && about->cmsg_type == SO_TIMESTAMPNS) {
        memcpy(&stamp, CMSG_DATA(about), sizeof(stamp));
        clock_gettime(CLOCK_REALTIME, &now);
        passed->at_us -= (int64_t)(now.tv_sec - stamp.tv_sec) * 1000000 + (now.tv_nsec - stamp.tv_nsec) / 1000;
    }
    if (!hold->sent_us && !passed->is_out && frame_has_data(passed->frame, passed->length))
        hold->sent_us = within(passed->at_us, hold->released_us);
    return true;
}

/* Reports when the node first sent data of a program. A peer that waits for the node waits for that. */
static void tell_first_sent(struct hold *hold)
{
    static struct passed passed;
    struct pollfd wait[2] = {{.fd = hold->watch_fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    int64_t left = SILENT_MS * 1000;

    while (!hold->sent_us && !wait[1].revents && left > 0) {
        if (poll(wait, 2, (int)(left / 1000 + 1)) < 0 && errno != EINTR)
            break;
        if (wait[0].revents)
            (void)next_passed(hold, &passed);
        left = hold->released_us + SILENT_MS * 1000 - now_us();
    }
    if (hold->sent_us)
        printf("{\"event\": \"sent\", \"at_us\": %" PRId64 "}\n", hold->sent_us);
    else
        puts("{\"event\": \"silent\"}");
}

/* The first frame to a group that the bridge has sent to PORT and to the TAP; false: there was none. */
static bool first_flooded(struct hold *hold, struct passed *passed)
{
    while (next_passed(hold, passed))
        if (passed->is_out && is_for_node(hold, passed->frame, passed->length) && is_to_group(passed->frame))
            return true;
    return false;
}

/* Makes PORT a port of the bridge. It has all frames to groups then, once. */
static int plug(struct hold *hold, int port, const char *name)
{
    static struct passed flooded;
    struct frames before = {.limit = hold->groups.limit};
    const uint8_t *frame;
    size_t length;
    int error = 0;

    for (int i = 0; !error && i < 3; i++) { /* each time there is less that came meanwhile */
        error = take_in(hold, NETDEV_QUEUE_FRAMES);
        hand_over(hold, &hold->groups, port);
    }
    if (error)
        return error;
    error = netdev_bind_capture(hold->watch_fd, name);
    if (error)
        return fail("watch the port", name, error);
    error = netdev_set_bridge(name, hold->bridge, true);
    if (error)
        return fail("attach to the bridge", name, error);
    error = take_in(hold, NETDEV_QUEUE_FRAMES);
    hold->has_groups = true;
    if (error || !first_flooded(hold, &flooded)) {
        hand_over(hold, &hold->groups, port);
        return error;
    }
    /* PORT has all frames that the TAP has from that frame on */
    while ((length = frames_take(&hold->groups, &frame)) && !frame_is_same(frame, length, flooded.frame, flooded.length))
        if (frames_keep(&before, frame, length))
            hold->lost++;
    hand_over(hold, &before, port);
    frames_free(&before);
    return 0;
}

/* Hands over the frames of the TAP, until none comes. */
static int settle(struct hold *hold, int port)
{
    const struct timespec quiet = {.tv_nsec = QUIET_US * 1000};
    struct pollfd wait = {.fd = hold->tap_fd, .events = POLLIN};
    int64_t until = now_us() + SETTLE_MS * 1000;
    int error = 0;

    do {
        error = take_in(hold, FRAMES_A_TURN);
        hand_over(hold, &hold->frames, port);
    } while (!error && now_us() < until && ppoll(&wait, 1, &quiet, NULL) > 0);
    return error;
}

/* Makes the node's MAC that of PORT, and takes the TAP out of the bridge. */
static int hand_on(struct hold *hold, int port, const char *name)
{
    int error = netdev_set_mac(name, hold->node.mac, false);

    if (error)
        (void)fail("give the node's MAC to", name, error);
    if (!error)
        error = take_in(hold, NETDEV_QUEUE_FRAMES);
    hand_over(hold, &hold->frames, port);
    if (!error && (error = netdev_set_bridge(hold->tap, hold->bridge, false)))
        (void)fail("detach from the bridge", hold->tap, error);
    if (!error)
        error = take_in(hold, NETDEV_QUEUE_FRAMES); /* all: none comes any more */
    hand_over(hold, &hold->frames, port);
    return error;
}

static int release(struct hold *hold, const char *name)
{
    int port = netdev_open_sender(name), error;

    if (port < 0)
        return fail("open the port", name, port);
    hold->released_us = now_us();
    error = plug(hold, port, name);
    if (error)
        return error;
    hand_over(hold, &hold->frames, port);
    printf("{\"event\": \"released\", \"frames\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"lost\": %" PRIu64
           ", \"held_us\": %" PRId64 "}\n",
           hold->count, hold->bytes, hold->lost, hold->holding ? now_us() - hold->since_us : 0);
    error = settle(hold, port);
    if (!error)
        error = hand_on(hold, port, name);
    if (error)
        return error;
    tell_first_sent(hold);
    return 1;
}

/*
 * The node stays at the port of this name in another namespace. Frames that its peers sent meanwhile are late, not
 * lost.
 */
static int give_back(struct hold *hold, const char *netns, const char *name)
{
    /* the MAC is the TAP's until the node sends a frame */
    int error = hold->holding ? netdev_set_mac(hold->tap, hold->node.mac, false) : 0;

    hold->holding = false;
    if (error)
        return fail("let go of the node's MAC at", hold->tap, error);
    error = netdev_enter_namespace(netns);
    if (error)
        return fail("enter", netns, error);
    close(hold->watch_fd);
    hold->watch_fd = netdev_open_capture();
    if (hold->watch_fd < 0)
        return fail("watch", netns, hold->watch_fd);
    hold->back_fd = netdev_open_sender(name);
    if (hold->back_fd < 0)
        return fail("open the port", name, hold->back_fd);
    error = plug(hold, hold->back_fd, name);
    if (error)
        return error;
    hand_over(hold, &hold->frames, hold->back_fd);
    printf("{\"event\": \"returned\", \"frames\": %" PRIu64 ", \"lost\": %" PRIu64 "}\n", hold->count, hold->lost);
    return 0;
}

/* 0: continue; 1: the hold has ended; negative: it failed and printed that. */
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

/* Milliseconds until it is to be announced again; -1: it is not. */
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
            (void)announce(hold); /* a full TAP is harmless: the first one counts */
        if (wait[1].revents)
            result = take_in(hold, FRAMES_A_TURN);
        if (result == 0 && hold->back_fd >= 0)
            hand_over(hold, &hold->frames, hold->back_fd);
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
            memcpy(hold->node.mac, mac, ETH_ALEN);
        else if (option == 'l')
            hold->frames.limit = strtoull(optarg, NULL, 10);
        else if (option != 'a' || inet_pton(AF_INET, optarg, &hold->node.address) != 1)
            usage();
    }
    if (optind != argc || !hold->bridge || !hold->tap || !mac || !hold->node.address.s_addr)
        usage();
}

int main(int argc, char **argv)
{
    struct hold hold = {.frames.limit = 64 << 20, .back_fd = -1};
    int result;

    parse(&hold, argc, argv);
    hold.groups.limit = hold.frames.limit / GROUPS_SHARE;
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
    frames_free(&hold.groups);
    close(hold.tap_fd);
    return result < 0;
}
