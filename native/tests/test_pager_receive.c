/* The receiving half of the pager without a process: the cache, and the address map against a list of single pages. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../pager/address_map.h"
#include "../pager/cache.h"
#include "../pager/stream.h"
#include "check.h"

enum {
    PAGE = STREAM_PAGE,
    SPACE = 4096,         /* pages that the model has */
    BASE_PAGE = 7 * CHUNK_PAGES,
    STEPS = 4000,
    FAMILY = 4,
    NOTHING = -1,
};

static uint64_t state = 88172645463325252;

static unsigned random_below(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 20) % limit;
}

static uint64_t address_of(unsigned page)
{
    return (uint64_t)(BASE_PAGE + page) * PAGE;
}

/* The model: for each address the number of the page that belongs there and is not there yet. */

struct model {
    struct address_map map;
    int pages[SPACE];
};

static void fill_cache(struct cache *cache, uint32_t pid, unsigned first, unsigned count, uint16_t round, int number)
{
    while (count) {
        struct stream_frame frame = {.type = 'D', .pid = pid, .address = address_of(first), .pages = count};
        struct iovec pieces[2];
        int got;

        if (frame.pages > STREAM_PAGES_MAX)
            frame.pages = STREAM_PAGES_MAX;
        cache_begin_frame(cache);
        got = cache_place(cache, &frame, round, pieces);
        CHECK(got == 1 || got == 2);
        for (int i = 0; i < got; i++)
            for (size_t at = 0; at < pieces[i].iov_len; at += PAGE, number++)
                memcpy((char *)pieces[i].iov_base + at, &number, sizeof(number));
        cache_end_frame(cache);
        first += frame.pages;
        count -= frame.pages;
    }
}

static void take_all(struct cache *cache, uint32_t pid, uint16_t recent, struct address_map *map)
{
    struct chunk **chunks;
    size_t count;

    CHECK(!cache_take(cache, pid, &chunks, &count));
    for (size_t i = 0; i < count; i++) {
        uint64_t present[CHUNK_WORDS];
        int late = chunk_present(chunks[i], recent, present);

        CHECK(!address_map_add(map, chunks[i], present, late));
    }
    free(chunks);
}

static int number_at(const struct address_map *map, uint64_t address)
{
    struct extent *extent = address_map_find(map, address);
    struct claim claim;
    int number = NOTHING;

    if (extent && extent_claim(extent, address, 1, &claim)) {
        if (claim.address == address)
            memcpy(&number, claim_bytes(&claim), sizeof(number));
        claim_finish(&((struct address_map *)map)->left, &claim, 0);
    }
    return number;
}

static void compare(const struct model *model)
{
    uint64_t left = 0;

    for (unsigned page = 0; page < SPACE; page++) {
        CHECK(number_at(&model->map, address_of(page)) == model->pages[page]);
        left += model->pages[page] != NOTHING;
    }
    CHECK(model->map.left == left);
}

static void begin_model(struct model *model, struct cache *cache)
{
    memset(model, 0, sizeof(*model));
    for (unsigned page = 0; page < SPACE; page++)
        model->pages[page] = NOTHING;
    for (unsigned i = 0; i < 12; i++) {
        unsigned first = random_below(SPACE - 300), count = 1 + random_below(299);

        fill_cache(cache, 5, first, count, 1, (int)(i * 1000));
        for (unsigned page = 0; page < count; page++)
            model->pages[first + page] = (int)(i * 1000 + page);
    }
    take_all(cache, 5, 1, &model->map);
    compare(model);
}

static bool all_is_mapped(void *context, uint64_t address)
{
    return context || address;
}

static bool nothing_is_mapped(void *context, uint64_t address)
{
    return context && address;
}

static void forget(struct model *model, unsigned first, unsigned count)
{
    for (unsigned page = first; page < first + count; page++)
        model->pages[page] = NOTHING;
}

/* As the kernel reports it: a mapping in the way is unmapped first, the old address last. */
static void step_remap(struct model *model, unsigned from, unsigned to, unsigned count)
{
    int moved[SPACE];

    if (from < to + count && to < from + count)
        return;
    CHECK(!address_map_resolve_events(&model->map, nothing_is_mapped, NULL)); /* the model moves several mappings, too */
    CHECK(!address_map_unmap(&model->map, address_of(to), address_of(to + count)));
    CHECK(!address_map_remap(&model->map, address_of(from), address_of(to), (uint64_t)count * PAGE));
    if (random_below(4)) {
        CHECK(!address_map_unmap(&model->map, address_of(from), address_of(from + count)));
        if (random_below(2))
            CHECK(!address_map_resolve_events(&model->map, nothing_is_mapped, NULL));
    } else {
        CHECK(!address_map_resolve_events(&model->map, all_is_mapped, NULL)); /* MREMAP_DONTUNMAP */
    }
    CHECK(!model->map.held);
    memcpy(moved, model->pages + from, count * sizeof(*moved));
    forget(model, from, count);
    memcpy(model->pages + to, moved, count * sizeof(*moved));
}

static void step_fill(struct model *model, unsigned first, unsigned limit)
{
    struct extent *extent = address_map_next(&model->map, address_of(first), 0);
    struct claim claim;
    unsigned page, done;

    while (extent && !extent_claim(extent, address_of(first), limit, &claim))
        extent = address_map_next(&model->map, extent_end(extent), 0);
    if (!extent)
        return;
    page = (unsigned)(claim.address / PAGE) - BASE_PAGE;
    for (unsigned before = first; before < page; before++)
        CHECK(model->pages[before] == NOTHING);
    for (unsigned i = 0; i < claim.count; i++)
        CHECK(!memcmp(claim_bytes(&claim) + i * PAGE, &model->pages[page + i], sizeof(int)));
    done = random_below(claim.count + 1);
    claim_finish(&model->map.left, &claim, done);
    forget(model, page, done);
}

static void step(struct model *family, unsigned *members)
{
    struct model *model = &family[random_below(*members)];
    unsigned count = 1 + random_below(700), first = random_below(SPACE - count);

    switch (random_below(16)) {
    case 0:
    case 1:
        CHECK(!address_map_unmap(&model->map, address_of(first), address_of(first + count)));
        forget(model, first, count);
        break;
    case 2:
    case 3:
        address_map_remove(&model->map, address_of(first), address_of(first + count));
        forget(model, first, count);
        break;
    case 4:
        if (*members < FAMILY) {
            memset(&family[*members].map, 0, sizeof(family->map));
            CHECK(!address_map_fork(&family[*members].map, &model->map));
            memcpy(family[(*members)++].pages, model->pages, sizeof(model->pages));
        }
        break;
    case 5:
    case 6:
    case 7:
        step_fill(model, first, 1 + random_below(64));
        break;
    default:
        step_remap(model, first, random_below(SPACE - count), count);
    }
}

static void test_map_against_model(void)
{
    static struct model family[FAMILY];

    for (int run = 0; run < 40; run++) {
        struct cache cache;
        unsigned members = 1;

        CHECK(!cache_open(&cache));
        begin_model(&family[0], &cache);
        for (int i = 0; i < STEPS / 40; i++)
            step(family, &members);
        for (unsigned i = 0; i < members; i++) {
            CHECK(!address_map_resolve_events(&family[i].map, nothing_is_mapped, NULL));
            compare(&family[i]);
            address_map_free(&family[i].map);
            CHECK(!family[i].map.left);
        }
        cache_close(&cache);
    }
}

/* Two extents of a few pages, from page 0 on and from page 600 on. */
static void begin_two(struct address_map *map)
{
    struct cache cache;

    memset(map, 0, sizeof(*map));
    CHECK(!cache_open(&cache));
    fill_cache(&cache, 5, 0, 10, 1, 100);
    fill_cache(&cache, 5, 600, 10, 1, 600);
    take_all(&cache, 5, 1, map);
    cache_close(&cache);
}

static int remap(struct address_map *map, unsigned from, unsigned to)
{
    return address_map_remap(map, address_of(from), address_of(to), 10 * PAGE);
}

static int unmap(struct address_map *map, unsigned first)
{
    return address_map_unmap(map, address_of(first), address_of(first + 10));
}

/* One thread moves 0 to 1000, another one 600 to where 0 was; the second is reported first. */
static void test_reports_in_the_other_order(void)
{
    struct address_map map, child = {0};

    begin_two(&map);
    CHECK(!remap(&map, 600, 0) && map.held && number_at(&map, address_of(3)) == 103);
    CHECK(!address_map_fork(&child, &map) && !child.held && number_at(&child, address_of(3)) == 603);
    CHECK(!remap(&map, 0, 1000) && !map.held);
    CHECK(!unmap(&map, 0) && !unmap(&map, 600)); /* in which order soever */
    CHECK(number_at(&map, address_of(3)) == 603 && number_at(&map, address_of(1003)) == 103 && map.left == 20);
    address_map_free(&map);
    address_map_free(&child);

    begin_two(&map); /* munmap instead */
    CHECK(!remap(&map, 600, 0) && !unmap(&map, 600) && map.held && map.left == 20);
    address_map_remove(&map, address_of(0), address_of(2)); /* in both, as they look the same */
    CHECK(map.left == 16);
    CHECK(!unmap(&map, 0) && !map.held && number_at(&map, address_of(3)) == 603 && map.left == 8);
    address_map_free(&map);

    begin_two(&map); /* the mapping in the way is gone, without an event */
    CHECK(!remap(&map, 600, 0) && map.held);
    CHECK(!address_map_resolve_events(&map, all_is_mapped, NULL) && !map.held);
    CHECK(number_at(&map, address_of(3)) == 603 && map.left == 10);
    address_map_free(&map);
}

/* One thread unmaps or moves an unknown mapping, another one moves 600 to there; the second is reported first. */
static void test_what_was_moved_meanwhile_is_not_taken_away(void)
{
    struct address_map map, child = {0};

    begin_two(&map);
    CHECK(!remap(&map, 600, 1000) && !unmap(&map, 600));
    CHECK(!address_map_unmap(&map, address_of(900), address_of(1005)) && map.left == 20);
    CHECK(!address_map_fork(&child, &map) && child.left == 20);
    CHECK(!address_map_resolve_events(&map, all_is_mapped, NULL) && number_at(&map, address_of(1003)) == 603);
    CHECK(!address_map_resolve_events(&child, nothing_is_mapped, NULL) && number_at(&child, address_of(1003)) == NOTHING);
    CHECK(number_at(&child, address_of(1005)) == 605 && map.left == 20 && child.left == 15);
    CHECK(!unmap(&map, 1000) && map.left == 10); /* nothing has come since */
    address_map_free(&map);
    address_map_free(&child);

    begin_two(&map);
    CHECK(!remap(&map, 600, 1000) && !address_map_remap(&map, address_of(900), address_of(2000), 110 * PAGE));
    CHECK(number_at(&map, address_of(1003)) == 603 && !unmap(&map, 600));
    CHECK(!address_map_remap(&map, address_of(1000), address_of(3000), 50 * PAGE)); /* that has grown since */
    CHECK(number_at(&map, address_of(3003)) == 603);
    CHECK(!unmap(&map, 3000) && !remap(&map, 0, 3000)); /* unmapped pages are not found again */
    CHECK(!address_map_resolve_events(&map, all_is_mapped, NULL) && number_at(&map, address_of(3003)) == 103 && map.left == 10);
    address_map_free(&map);
}

static void test_moved_from_is_unmapped_once(void)
{
    struct address_map map;

    begin_two(&map);
    CHECK(!remap(&map, 0, 1000) && !remap(&map, 600, 0));
    CHECK(!unmap(&map, 0) && number_at(&map, address_of(3)) == 603);   /* of the first move */
    CHECK(!unmap(&map, 600) && number_at(&map, address_of(3)) == 603);
    CHECK(!unmap(&map, 0) && number_at(&map, address_of(3)) == NOTHING);
    address_map_free(&map);
}

static void test_claims(void)
{
    struct address_map map;
    struct claim claim, other;
    struct extent *extent;

    begin_two(&map);
    extent = address_map_find(&map, address_of(0));
    CHECK(extent_claim(extent, address_of(2), 4, &claim) == 4 && claim.address == address_of(2));
    CHECK(extent_claim(extent, address_of(0), 64, &other) == 2 && other.address == address_of(0));
    claim_finish(&map.left, &other, 2);
    CHECK(extent_claim(extent, address_of(0), 64, &other) == 4 && other.address == address_of(6));
    claim_finish(&map.left, &other, 0);
    claim_finish(&map.left, &claim, 1);
    CHECK(map.left == 17 && number_at(&map, address_of(2)) == NOTHING && number_at(&map, address_of(3)) == 103);
    CHECK(address_map_next(&map, address_of(0), 1) && !address_map_next(&map, address_of(1024), 0));
    address_map_free(&map);
}

static size_t pages_of(struct cache *cache, uint32_t pid, unsigned expected_first)
{
    struct address_map map = {0};
    struct extent *extent;
    struct claim claim;
    size_t left;

    take_all(cache, pid, 2, &map);
    left = map.left;
    extent = address_map_next(&map, 0, 0);
    CHECK(!left == !extent);
    if (extent)
        CHECK(extent_claim(extent, 0, 1, &claim) && claim.address == address_of(expected_first));
    address_map_free(&map);
    return left;
}

static void test_cache(void)
{
    struct cache cache;
    struct address_map map = {0};

    CHECK(!cache_open(&cache));
    fill_cache(&cache, 1, 500, 100, 1, 0);
    fill_cache(&cache, 2, 0, 1, 1, 0);
    cache_zero(&cache, 1, address_of(500), 10);
    CHECK(pages_of(&cache, 1, 510) == 90 && pages_of(&cache, 1, 0) == 0 && cache.count == 1);
    cache_zero(&cache, 2, 0, UINT32_MAX); /* of the whole address space */
    CHECK(cache.count == 0);
    fill_cache(&cache, 3, 0, 1200, 1, 0);
    fill_cache(&cache, 3, 40, 4, 2, 9000);
    cache_void(&cache, 3, 2); /* pages of the same round stay, whichever connection was first */
    CHECK(cache.count == 1 && pages_of(&cache, 3, 40) == 4);
    fill_cache(&cache, 4, 0, 600, 1, 0);
    fill_cache(&cache, 4, 600, 1, 2, 0);
    take_all(&cache, 4, 2, &map);
    CHECK(address_map_next(&map, 0, 1)->start == address_of(CHUNK_PAGES)); /* recent ones first */
    CHECK(address_map_next(&map, 0, 0)->start == address_of(0));
    address_map_free(&map);
    for (uint32_t pid = 1; pid < 3000; pid++)
        fill_cache(&cache, pid, pid % 100, 1, 1, (int)pid);
    for (uint32_t pid = 1; pid < 3000; pid++)
        CHECK(pages_of(&cache, pid, pid % 100) == 1);
    fill_cache(&cache, 1, 0, 5, 1, 0);
    cache_close(&cache);
}

/* Memory that is given back here is the system's at once, even after a fork meanwhile. */
static void test_a_fork_does_not_keep_the_cache(void)
{
    struct cache cache;
    struct stream_frame frame = {.type = 'D', .pid = 1, .address = address_of(0), .pages = 1};
    struct iovec pieces[2];
    unsigned char seen;
    int status;
    pid_t child;

    CHECK(cache_open(&cache) == 0);
    cache_begin_frame(&cache);
    CHECK(cache_place(&cache, &frame, 1, pieces) == 1);
    cache_end_frame(&cache);
    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(mincore(pieces[0].iov_base, PAGE, &seen) && errno == ENOMEM ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    cache_close(&cache);
}

static int is_taken(struct stream_frame frame)
{
    uint8_t bytes[STREAM_HEADER];
    struct stream_frame got;

    stream_encode(&frame, bytes);
    return !stream_decode(bytes, &got) && !memcmp(&got, &frame, sizeof(got));
}

static void test_frames(void)
{
    struct stream_frame data = {.type = 'D', .pid = 1, .address = PAGE, .pages = 2, .length = 2 * PAGE, .crc = 9};
    struct stream_frame hole = {.type = 'Z', .pid = 1, .address = PAGE, .pages = 1 << 30};
    struct stream_frame end = {.type = 'R', .address = 1};
    struct stream_frame wrong;

    CHECK(is_taken(data) && is_taken(hole) && is_taken(end));
    CHECK(is_taken((struct stream_frame){.type = 'X', .pid = 1}));
    wrong = data, wrong.length--;
    CHECK(!is_taken(wrong));
    wrong = data, wrong.address++;
    CHECK(!is_taken(wrong));
    wrong = data, wrong.pages = 0, wrong.length = 0;
    CHECK(!is_taken(wrong));
    wrong = data, wrong.pages = STREAM_PAGES_MAX + 1, wrong.length = wrong.pages * PAGE;
    CHECK(!is_taken(wrong));
    wrong = hole, wrong.pid = 0;
    CHECK(!is_taken(wrong));
    wrong = hole, wrong.address = (UINT64_C(1) << 57) - PAGE;
    CHECK(!is_taken(wrong));
    wrong = end, wrong.address = 0;
    CHECK(!is_taken(wrong));
    wrong = end, wrong.type = 'Q';
    CHECK(!is_taken(wrong));
}

/* A bit that changes makes the frame invalid, or its payload one with another checksum. */
static int is_seen(struct stream_frame frame, int bit)
{
    uint8_t bytes[STREAM_HEADER];
    struct stream_frame got;

    stream_encode(&frame, bytes);
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    return stream_decode(bytes, &got) || (got.length && got.crc != frame.crc);
}

static void test_changed_headers(void)
{
    const struct stream_frame frames[] = {
        {.type = 'D', .pid = 1, .address = PAGE, .pages = 2, .length = 2 * PAGE, .crc = 9, .sequence = 3},
        {.type = 'Z', .pid = 1, .address = PAGE, .pages = 1 << 30},
        {.type = 'X', .pid = 5},
        {.type = 'L', .address = 3, .sequence = 7},
    };

    for (size_t i = 0; i < sizeof(frames) / sizeof(*frames); i++)
        for (int bit = 0; bit < STREAM_HEADER * 8; bit++)
            CHECK(is_seen(frames[i], bit));
}

int main(void)
{
    test_map_against_model();
    test_reports_in_the_other_order();
    test_what_was_moved_meanwhile_is_not_taken_away();
    test_moved_from_is_unmapped_once();
    test_claims();
    test_cache();
    test_a_fork_does_not_keep_the_cache();
    test_frames();
    test_changed_headers();
    return 0;
}
