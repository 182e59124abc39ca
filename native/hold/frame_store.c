/* See frame_store.h. */
#include "frame_store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>

enum { STEP = 1 << 20 }; /* bytes by which the store grows: few copies, little waste */

int frames_keep(struct frames *frames, const uint8_t *frame, size_t length)
{
    uint16_t header = (uint16_t)length;
    size_t room = sizeof(header) + length;

    if (length == 0 || length > FRAME_MAX)
        return -EMSGSIZE;
    if (frames->bytes.count + room > frames->limit)
        return -ENOSPC;
    if (frames->bytes.capacity - frames->bytes.head - frames->bytes.count < room) {
        int error = buffer_reserve(&frames->bytes, room > STEP ? room : STEP);

        if (error)
            return error;
    }
    buffer_append(&frames->bytes, &header, sizeof(header));
    buffer_append(&frames->bytes, frame, length);
    return 0;
}

size_t frames_take(struct frames *frames, const uint8_t **frame)
{
    uint16_t length;

    if (frames->bytes.count == 0)
        return 0;
    memcpy(&length, buffer_head(&frames->bytes), sizeof(length));
    *frame = buffer_head(&frames->bytes) + sizeof(length);
    buffer_consume(&frames->bytes, sizeof(length) + length);
    return length;
}

bool frame_has_data(const uint8_t *frame, size_t length)
{
    struct ether_header ethernet;
    struct iphdr ip;
    struct tcphdr tcp;
    size_t at = sizeof(ethernet), headers;

    if (length < at + sizeof(ip))
        return false;
    memcpy(&ethernet, frame, sizeof(ethernet));
    memcpy(&ip, frame + at, sizeof(ip));
    headers = (size_t)ip.ihl * 4;
    if (ethernet.ether_type != htons(ETHERTYPE_IP) || ip.version != 4 || headers < sizeof(ip))
        return false;
    if (ip.protocol == IPPROTO_UDP)
        return true;
    at += headers;
    if (ip.protocol != IPPROTO_TCP || length < at + sizeof(tcp))
        return false;
    memcpy(&tcp, frame + at, sizeof(tcp));
    return ntohs(ip.tot_len) > headers + (size_t)tcp.doff * 4;
}

/* Where the checksum of UDP is in a frame; `length` without one. */
static size_t udp_checksum_at(const uint8_t *frame, size_t length)
{
    size_t at = sizeof(struct ether_header);
    struct iphdr ip;

    if (length < at + sizeof(ip))
        return length;
    memcpy(&ip, frame + at, sizeof(ip));
    at += (size_t)ip.ihl * 4 + 6;
    if (frame[12] != 0x08 || frame[13] != 0x00 || ip.version != 4 || ip.protocol != IPPROTO_UDP || at + 2 > length)
        return length;
    return at;
}

bool frame_is_same(const uint8_t *one, size_t one_length, const uint8_t *other, size_t other_length)
{
    size_t at = udp_checksum_at(one, one_length), after = at < one_length ? at + 2 : at;

    return one_length == other_length && !memcmp(one, other, at) && !memcmp(one + after, other + after, one_length - after);
}

void frames_free(struct frames *frames)
{
    buffer_free(&frames->bytes);
}
