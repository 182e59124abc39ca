#include "map.h"

#include "page.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((visibility("default"), used)) struct anchor wherry_mpi_map = {.magic = MAP_MAGIC};
int map_size;
uint64_t map_first_check;
struct map *map_incoming;
static struct map *newest, *copy;
static char *places;
static uint16_t *first; /* the launcher's sites */

enum { PLACES = 2 };

static struct state *state;

/* Fills `sites` from the text, a list of SITExCOUNT; the number of ranks, or -1 for anything else. */
static int parse(const char *text, uint16_t *sites, int most)
{
    int ranks = 0;

    while (*text) {
        char *end;
        long site = strtol(text, &end, 10), count;

        if (end == text || *end != 'x' || site < 0 || site > UINT16_MAX)
            return -1;
        text = end + 1;
        count = strtol(text, &end, 10);
        if (end == text || count < 1 || count > most - ranks)
            return -1;
        while (count--)
            sites[ranks++] = (uint16_t)site;
        text = end + (*end == ',');
        if (*end && *end != ',')
            return -1;
    }
    return ranks;
}

static size_t place_bytes(void)
{
    return (sizeof(struct told) + sizeof(uint16_t) * (size_t)map_size + 7) / 8 * 8;
}

bool map_begin(const char *text, int size)
{
    void *memory;

    map_size = size;
    newest = calloc(1, map_bytes());
    copy = calloc(1, map_bytes());
    map_incoming = calloc(1, map_bytes());
    first = malloc(sizeof *first * (size_t)size);
    memory = mmap(NULL, PLACES * place_bytes() + sizeof *state, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    if (!newest || !copy || !map_incoming || !first || memory == MAP_FAILED || parse(text, newest->sites, size) != size)
        return false;
    memcpy(first, newest->sites, sizeof *first * (size_t)size);
    map_first_check = map_check(newest);
    places = memory;
    state = (struct state *)(places + PLACES * place_bytes());
    state->ranks = (uint64_t)size;
    wherry_mpi_map.process = (uint64_t)getpid();
    wherry_mpi_map.bytes = PLACES * place_bytes() + sizeof *state;
    __atomic_store_n(&wherry_mpi_map.address, (uint64_t)(uintptr_t)memory, __ATOMIC_RELEASE);
    return true;
}

/* FNV-1a, 64 bits. */
static uint64_t hash(uint64_t start, const void *data, size_t bytes)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < bytes; i++)
        start = (start ^ at[i]) * 0x100000001b3U;
    return start;
}

uint64_t map_check(const struct map *map)
{
    return hash(hash(0xcbf29ce484222325U, &map->epoch, sizeof map->epoch), map->sites,
                sizeof *map->sites * (size_t)map_size);
}

bool map_first_parts(int size, const int *world)
{
    bool parted = false;

    for (int i = 0; i < size; i++) {
        int rank = world ? world[i] : i;

        if (rank < 0 || rank >= map_size)
            return false;
        parted = parted || first[rank] != first[world ? world[0] : 0];
    }
    return parted;
}

static void read_place(const struct told *told)
{
    uint64_t check = told->check;

    copy->epoch = __atomic_load_n(&told->epoch, __ATOMIC_ACQUIRE);
    memcpy(copy->sites, told->sites, sizeof *copy->sites * (size_t)map_size);
    if (map_check(copy) == check)
        map_take(copy);
}

const struct map *map_newest(void)
{
    for (unsigned i = 0; i < PLACES; i++) {
        const struct told *told = (const struct told *)(places + i * place_bytes());

        if (__atomic_load_n(&told->epoch, __ATOMIC_RELAXED) > newest->epoch)
            read_place(told);
    }
    return newest;
}

void map_take(const struct map *other)
{
    if (other->epoch > newest->epoch)
        memcpy(newest, other, map_bytes());
}

void map_use(uint64_t epoch)
{
    state->used = epoch;
}
