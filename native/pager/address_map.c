/* See address_map.h. */
#include "address_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct held_move {
    struct held_move *next;
    uint64_t start, end;
    struct extent_list extents;
};

static int drop(struct address_map *map, uint64_t start, uint64_t end)
{
    struct extent_list taken = {0};
    int error = extents_cut(&map->here, start, end, &taken);

    extents_free(&map->left, &taken);
    return error;
}

static int overlaps(const struct held_move *move, uint64_t start, uint64_t end)
{
    return move->start < end && start < move->end;
}

/* Something else is mapped there by now. */
static void forget_unconfirmed(struct address_map *map, uint64_t start, uint64_t end)
{
    struct extent_list *list = &map->unconfirmed;
    size_t kept = 0;

    for (size_t i = 0; i < list->count; i++)
        if (list->extents[i]->start < end && extent_end(list->extents[i]) > start)
            extent_free(&map->left, list->extents[i]);
        else
            list->extents[kept++] = list->extents[i];
    list->count = kept;
}

/* Whatever is in the way is no longer mapped. */
static int land(struct address_map *map, uint64_t start, uint64_t end, struct extent_list *extents)
{
    int error = drop(map, start, end);

    forget_unconfirmed(map, start, end);
    for (size_t i = 0; i < extents->count; i++) {
        extents->extents[i]->moved_to = start;
        extents->extents[i]->generation = map->generation;
    }
    if (!error)
        error = extents_insert(&map->here, extents_search(&map->here, start), extents->extents, extents->count);
    if (!error)
        extents->count = 0;
    extents_free(&map->left, extents);
    return error;
}

static int may_land(const struct address_map *map, const struct held_move *move)
{
    for (const struct held_move *older = map->held; older != move; older = older->next)
        if (overlaps(older, move->start, move->end))
            return 0;
    return !extents_occupied(&map->here, move->start, move->end);
}

/* Lands the held moves whose place is free by now, or all. */
static int land_held(struct address_map *map, int all)
{
    int error = 0;

    for (struct held_move **at = &map->held, *move; !error && (move = *at);) {
        if (!all && !may_land(map, move)) {
            at = &move->next;
            continue;
        }
        *at = move->next;
        error = land(map, move->start, move->end, &move->extents);
        free(move);
    }
    return error;
}

static int hold(struct address_map *map, uint64_t start, uint64_t end, struct extent_list *extents)
{
    struct held_move *move = malloc(sizeof(*move)), **at = &map->held;

    if (!move) {
        extents_free(&map->left, extents);
        return -ENOMEM;
    }
    *move = (struct held_move){NULL, start, end, *extents};
    while (*at)
        at = &(*at)->next;
    *at = move;
    return 0;
}

static void expect(struct address_map *map, uint64_t start, uint64_t end)
{
    if (map->expected_count == EXPECTED_MAX) /* of moves that leave the mapping (MREMAP_DONTUNMAP) */
        memmove(map->expected, map->expected + 1, --map->expected_count * sizeof(*map->expected));
    map->expected[map->expected_count].start = start;
    map->expected[map->expected_count++].end = end;
}

static int is_expected(struct address_map *map, uint64_t start, uint64_t end)
{
    for (unsigned i = 0; i < map->expected_count; i++)
        if (map->expected[i].start == start && map->expected[i].end == end) {
            memmove(map->expected + i, map->expected + i + 1,
                    (--map->expected_count - i) * sizeof(*map->expected));
            return 1;
        }
    return 0;
}

static bool arrived_since_resolve(const struct address_map *map, const struct extent *extent)
{
    return map->events_pending && extent->moved_to && extent->generation == map->generation;
}

/* A mapping that begins behind `from` was not moved from there: its extents are put back. */
static int put_back(struct address_map *map, struct extent_list *taken, uint64_t from)
{
    size_t kept = 0;
    int error = 0;

    for (size_t i = 0; i < taken->count; i++) {
        struct extent *extent = taken->extents[i];

        if (error || !arrived_since_resolve(map, extent) || extent->moved_to <= from)
            taken->extents[kept++] = extent;
        else if ((error = extents_insert(&map->here, extents_search(&map->here, extent->start), &extent, 1)) < 0)
            taken->extents[kept++] = extent;
    }
    taken->count = kept;
    return error;
}

int address_map_remap(struct address_map *map, uint64_t from, uint64_t to, uint64_t length)
{
    struct extent_list taken = {0};
    int error = extents_cut(&map->here, from, from + length, &taken);

    if (!error)
        error = put_back(map, &taken, from);
    if (error < 0) {
        extents_free(&map->left, &taken);
        return error;
    }
    map->events_pending = true;
    for (size_t i = 0; i < taken.count; i++)
        taken.extents[i]->start += to - from;
    expect(map, from, from + length);
    if (hold(map, to, to + length, &taken) < 0)
        return -ENOMEM;
    return land_held(map, 0);
}

int address_map_unmap(struct address_map *map, uint64_t start, uint64_t end)
{
    struct extent_list taken = {0};
    int error;

    if (is_expected(map, start, end))
        return 0;
    error = extents_cut(&map->here, start, end, &taken);
    for (size_t i = 0; i < taken.count; i++)
        if (error || !arrived_since_resolve(map, taken.extents[i]))
            extent_free(&map->left, taken.extents[i]);
        else if ((error = extents_append(&map->unconfirmed, taken.extents[i])) < 0)
            extent_free(&map->left, taken.extents[i]);
    free(taken.extents);
    return error < 0 ? error : land_held(map, 0);
}

void address_map_remove(struct address_map *map, uint64_t start, uint64_t end)
{
    extents_remove(&map->left, &map->here, start, end);
    for (struct held_move *move = map->held; move; move = move->next)
        extents_remove(&map->left, &move->extents, start, end);
    for (size_t i = 0; i < map->unconfirmed.count; i++)
        extent_remove(&map->left, map->unconfirmed.extents[i], start, end);
}

static int resolve_unconfirmed(struct address_map *map, bool (*is_mapped)(void *, uint64_t), void *context)
{
    struct extent_list list = map->unconfirmed;
    int error = 0;

    map->unconfirmed = (struct extent_list){0};
    for (size_t i = 0; i < list.count; i++) {
        struct extent *extent = list.extents[i];
        size_t at = extents_search(&map->here, extent->start);
        bool free_here = at == map->here.count || map->here.extents[at]->start >= extent_end(extent);

        if (error || !free_here || !is_mapped(context, extent->start) ||
            (error = extents_insert(&map->here, at, &extent, 1)) < 0)
            extent_free(&map->left, extent);
    }
    free(list.extents);
    return error;
}

int address_map_resolve_events(struct address_map *map, bool (*is_mapped)(void *, uint64_t), void *context)
{
    int error = land_held(map, 1);

    if (!error)
        error = resolve_unconfirmed(map, is_mapped, context);
    map->expected_count = 0;
    map->generation++;
    map->events_pending = false;
    return error;
}

int address_map_add(struct address_map *map, struct chunk *chunk, const uint64_t present[CHUNK_WORDS], int recent)
{
    struct extent *extent = calloc(1, sizeof(*extent));

    if (!extent || extents_insert(&map->here, extents_search(&map->here, chunk->address), &extent, 1) < 0) {
        free(extent);
        chunk_put(chunk);
        return -ENOMEM;
    }
    extent->start = chunk->address;
    extent->pages = CHUNK_PAGES;
    extent->recent = recent != 0;
    extent->chunk = chunk;
    for (unsigned word = 0; word < CHUNK_WORDS; word++) {
        extent->todo[word] = extent->mapped[word] = present[word];
        extent->left += (uint32_t)__builtin_popcountll(present[word]);
    }
    map->left += extent->left;
    return 0;
}

int address_map_fork(struct address_map *to, const struct address_map *from)
{
    int error = extents_copy(&to->left, &to->here, &from->here);

    to->generation = from->generation;
    to->events_pending = from->events_pending;
    if (!error)
        error = extents_copy(&to->left, &to->unconfirmed, &from->unconfirmed);
    for (const struct held_move *move = from->held; !error && move; move = move->next) {
        struct extent_list copy = {0};

        error = extents_copy(&to->left, &copy, &move->extents);
        if (error < 0)
            extents_free(&to->left, &copy);
        else
            error = land(to, move->start, move->end, &copy);
    }
    return error;
}

void address_map_free(struct address_map *map)
{
    for (struct held_move *move; (move = map->held);) {
        map->held = move->next;
        extents_free(&map->left, &move->extents);
        free(move);
    }
    extents_free(&map->left, &map->here);
    extents_free(&map->left, &map->unconfirmed);
}

struct extent *address_map_find(const struct address_map *map, uint64_t address)
{
    size_t at = extents_search(&map->here, address);

    if (at == map->here.count || map->here.extents[at]->start > address)
        return NULL;
    return map->here.extents[at];
}

struct extent *address_map_next(const struct address_map *map, uint64_t address, int recent)
{
    for (size_t at = extents_search(&map->here, address); at < map->here.count; at++)
        if (map->here.extents[at]->left && (!recent || map->here.extents[at]->recent))
            return map->here.extents[at];
    return NULL;
}
