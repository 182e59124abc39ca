/* See late_pages.h. */
#include "late_pages.h"

#include <endian.h>
#include <isa-l/crc.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = STREAM_PAGE, BLOCK = STREAM_BLOCK * PAGE, PAGES_MAX = 1 << 16 };

static struct late {
    uint64_t address; /* they are added in order */
    int sent;
} late[PAGES_MAX];
static unsigned count, sent, asked, next;
static struct receiver *receiver;
static void (*write_page)(void *bytes, uint64_t address);
static unsigned pages_per_ms;
static enum late_end how_it_ends;
static pthread_t thread;

void late_add(const void *address, uint32_t pages)
{
    for (uint32_t i = 0; i < pages; i++) {
        CHECK(count < PAGES_MAX && (!count || late[count - 1].address < (uintptr_t)address + i * PAGE));
        late[count++].address = (uintptr_t)address + i * PAGE;
    }
}

static void announce(void)
{
    for (unsigned i = 0, end; i < count; i = end) {
        uint64_t block = late[i].address / BLOCK * BLOCK, bits[STREAM_BITS / 8] = {0};
        struct stream_frame frame = {
            .type = 'M', .pid = (uint32_t)getpid(), .address = block, .pages = STREAM_BLOCK, .length = sizeof(bits)};

        for (end = i; end < count && late[end].address < block + BLOCK; end++) {
            uint64_t page = (late[end].address - block) / PAGE;

            bits[page / 64] |= UINT64_C(1) << page % 64;
        }
        for (unsigned word = 0; word < STREAM_BITS / 8; word++)
            bits[word] = htobe64(bits[word]);
        frame.crc = ~crc32_iscsi((unsigned char *)bits, sizeof(bits), ~0U);
        send_frame(&receiver->streams[i % HARNESS_STREAMS], frame, bits);
    }
}

static void send_page(struct late *page)
{
    static uint8_t bytes[PAGE];

    if (page->sent)
        return;
    write_page(bytes, page->address);
    send_data(&receiver->streams[sent++ % HARNESS_STREAMS], (void *)page->address, 1, bytes);
    page->sent = 1;
}

static int by_address(const void *key, const void *page)
{
    uint64_t address = *(const uint64_t *)key, other = ((const struct late *)page)->address;

    return address < other ? -1 : address > other;
}

/* False when nothing is needed any more. */
static int answer(void)
{
    uint8_t bytes[STREAM_HEADER];
    struct stream_frame frame;
    struct late *page;

    CHECK(recv(receiver->streams[0].fd, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes));
    CHECK(!stream_decode(bytes, &frame) && (frame.type == 'Q' || frame.type == 'F'));
    if (frame.type == 'F')
        return 0;
    CHECK(frame.pid == (uint32_t)getpid());
    page = bsearch(&frame.address, late, count, sizeof(*late), by_address);
    CHECK(page);
    asked++;
    send_page(page);
    return 1;
}

static void *serve(void *argument)
{
    struct pollfd look = {.fd = receiver->streams[0].fd, .events = POLLIN};

    (void)argument;
    for (;;) {
        if (how_it_ends != LATE_GOES_ON && sent >= count / 2)
            break;
        if (poll(&look, 1, 1) > 0) {
            if (!answer())
                break;
            continue;
        }
        for (unsigned i = 0; i < pages_per_ms && next < count; i++)
            send_page(&late[next++]);
    }
    for (int i = 0; i < HARNESS_STREAMS && how_it_ends != LATE_STALL; i++)
        shutdown(receiver->streams[i].fd, how_it_ends == LATE_CUT ? SHUT_RDWR : SHUT_WR);
    return NULL;
}

void late_begin(struct receiver *to, uint64_t number, void (*write)(void *bytes, uint64_t address), unsigned rate,
                enum late_end end)
{
    receiver = to;
    write_page = write;
    pages_per_ms = rate;
    how_it_ends = end;
    announce();
    send_end(receiver, 'P', number);
    CHECK(!pthread_create(&thread, NULL, serve, NULL));
}

unsigned late_join(void)
{
    pthread_join(thread, NULL);
    return asked;
}
