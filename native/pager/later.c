/* See later.h. */
#include "later.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "read_pages.h"
#include "sender.h"

enum {
    PAGE = STREAM_PAGE,
    BLOCK = STREAM_BLOCK * PAGE,
    ASKED_PAGES = 16,        /* a page that was asked for and its neighbours */
    BATCH_PAGES = 64,        /* of the others; a request waits so long */
    UNSENT_BYTES = 128 << 10, /* in the socket, which a request waits for too */
};

_Static_assert(STREAM_BLOCK == PAGE_SET_WORDS * 64, "an M frame is a block of a page set");
static const uint64_t ONE = 1;

int later_add(struct later *later, const struct process *process, uint64_t start, uint64_t end)
{
    struct later_process *list = later->list;

    if (!later->count || list[later->count - 1].process != process) {
        list = realloc(list, (later->count + 1) * sizeof(*list));
        if (!list)
            return -ENOMEM;
        later->list = list;
        list[later->count++] = (struct later_process){.process = process};
    }
    return page_set_add(&list[later->count - 1].pages, start, end);
}

int later_announce(struct later *later)
{
    int error = 0;

    for (size_t i = 0; i < later->count && !error; i++) {
        const struct later_process *one = &later->list[i];

        for (size_t at = 0; at < one->pages.count && !error; at++) {
            const struct page_block *block = &one->pages.blocks[at];

            for (int word = 0; word < PAGE_SET_WORDS; word++)
                later->left += (uint64_t)__builtin_popcountll(block->words[word]);
            error = sender_announce(one->process->ns_pid, block->number * BLOCK, block->words);
        }
    }
    return error;
}

/* Takes up to `limit` pages of a block, from page `first` on, out of the set and into the batch. */
static void take(struct later *later, struct later_process *one, size_t at, unsigned first, unsigned limit,
                 struct batch *batch)
{
    struct page_block *block = &one->pages.blocks[at];

    for (unsigned page = first; page < STREAM_BLOCK && limit && batch->count < RANGES_MAX; page++) {
        uint64_t start = block->number * BLOCK + (uint64_t)page * PAGE;
        struct range *range = batch->count ? &batch->ranges[batch->count - 1] : NULL;

        if (!(block->words[page / 64] >> page % 64)) {
            page |= 63; /* none in the rest of the word */
            continue;
        }
        if (!(block->words[page / 64] >> page % 64 & 1))
            continue;
        block->words[page / 64] &= ~(ONE << page % 64);
        if (range && page && range->start + (uint64_t)range->pages * PAGE == start)
            range->pages++; /* within the block, as `page` is not its first */
        else
            batch->ranges[batch->count++] = (struct range){.start = start, .pages = 1};
        batch->pages++;
        later->left--;
        limit--;
    }
}

/* Without sums: the destination lacks each of them, whatever was sent before. */
static struct batch batch_of(const struct process *process)
{
    return (struct batch){
        .source = {.pid = process->pid, .memory = process->memory, .pagemap = process->pagemap, .ns_pid = process->ns_pid}};
}

/* The block with this number; the number of blocks: there is none. */
static size_t find(const struct page_set *set, uint64_t number)
{
    size_t low = 0, high = set->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (set->blocks[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->count && set->blocks[low].number == number ? low : set->count;
}

static int answer(struct later *later, const struct stream_frame *frame)
{
    unsigned page = (unsigned)(frame->address % BLOCK / PAGE);

    for (size_t i = 0; i < later->count; i++) {
        struct later_process *one = &later->list[i];
        struct batch batch = batch_of(one->process);
        size_t at;

        if (one->process->ns_pid != frame->pid || (at = find(&one->pages, frame->address / BLOCK)) == one->pages.count)
            continue;
        if (one->pages.blocks[at].words[page / 64] >> page % 64 & 1)
            take(later, one, at, page, ASKED_PAGES, &batch);
        one->at = at;
        later->turn = i;
        return batch.count ? sender_send_now(&batch) : 0;
    }
    return 0;
}

static int send_some(struct later *later)
{
    for (size_t i = 0; i < later->count; i++, later->turn++) {
        struct later_process *one = &later->list[later->turn % later->count];
        struct batch batch = batch_of(one->process);

        for (size_t n = 0; n < one->pages.count && batch.pages < BATCH_PAGES; n++) {
            take(later, one, one->at % one->pages.count, 0, BATCH_PAGES - batch.pages, &batch);
            if (batch.pages < BATCH_PAGES)
                one->at++;
        }
        if (batch.count)
            return sender_send_now(&batch);
    }
    return 0;
}

/* 1: all has arrived; 0: continue; or negative errno. */
static int take_frame(struct later *later)
{
    struct stream_frame frame;
    int error = sender_receive(&frame);

    if (error)
        return error;
    if (frame.type == 'F')
        return 1;
    return frame.type == 'Q' ? answer(later, &frame) : -EPROTO;
}

int later_serve(struct later *later, int input)
{
    static const int unsent = UNSENT_BYTES;
    struct pollfd look[] = {{.fd = sender_socket()}, {.fd = input, .events = POLLIN}};
    int result = 0;

    setsockopt(look[0].fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    while (!result) {
        bool may_send = look[1].fd < 0 && later->left;

        look[0].events = may_send ? POLLIN | POLLOUT : POLLIN;
        if (poll(look, 2, -1) < 0) {
            result = errno == EINTR ? 0 : -errno;
            continue;
        }
        if (look[1].revents)
            look[1].fd = -1; /* it runs, or nobody is left to say so */
        if (look[0].revents & (POLLIN | POLLHUP | POLLERR))
            result = take_frame(later);
        else if (may_send && look[0].revents & POLLOUT)
            result = send_some(later);
    }
    return result < 0 ? result : 0;
}

void later_free(struct later *later)
{
    for (size_t i = 0; i < later->count; i++)
        page_set_free(&later->list[i].pages);
    free(later->list);
    *later = (struct later){0};
}
