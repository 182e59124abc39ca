/* See shared_memory.h. */
#include "shared_memory.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"

#define SHARED_MEMORY_MAGIC 0x776f646e69776b6dull

static int gateway = -1;

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static uint64_t areas_offset(void)
{
    return round_up(sizeof(struct shared_memory), PAGE_SIZE);
}

uint64_t shared_image_offset(uint32_t slot)
{
    return round_up(areas_offset() + TILE_MAX * USER_AREA_SIZE, USER_SIZE) + (uint64_t)slot * USER_SIZE;
}

struct user_area *shared_area(struct shared_memory *shared, uint32_t slot)
{
    return (struct user_area *)((uint8_t *)shared + areas_offset() + slot * USER_AREA_SIZE);
}

uint8_t *shared_image(struct shared_memory *shared, uint32_t slot)
{
    return (uint8_t *)shared + shared_image_offset(slot);
}

static int map(int fd, struct shared_memory **shared)
{
    void *at = mmap(NULL, shared_image_offset(TILE_MAX), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return -errno;
    *shared = at;
    return 0;
}

int shared_create(uint32_t tile_count, uint32_t core_count, struct shared_memory **shared)
{
    int fd = memfd_create("wherry-tiles", MFD_CLOEXEC), error;
    pthread_mutexattr_t robust;

    if (fd < 0)
        return -errno;
    error = ftruncate(fd, (off_t)shared_image_offset(TILE_MAX)) < 0 ? -errno : map(fd, shared);
    if (error < 0) {
        close(fd);
        return error;
    }
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int process = 0; process < PROCESS_MAX; process++)
        pthread_mutex_init(&(*shared)->endpoints[process].lock, &robust);
    pthread_mutexattr_destroy(&robust);
    (*shared)->build = WHERRY_TILES_BUILD;
    (*shared)->tile_count = (*shared)->here = tile_count;
    (*shared)->core_count = core_count;
    (*shared)->xfeatures = cpu_xfeatures();
    (*shared)->xsize = cpu_xsize();
    (*shared)->magic = SHARED_MEMORY_MAGIC;
    return fd;
}

int shared_open(int fd, struct shared_memory **shared)
{
    int error = map(fd, shared);

    if (error < 0)
        return error;
    if ((*shared)->magic != SHARED_MEMORY_MAGIC || (*shared)->build != WHERRY_TILES_BUILD ||
        (*shared)->xfeatures != cpu_xfeatures() || (*shared)->xsize != cpu_xsize())
        return -EPROTO;
    return 0;
}

uint64_t place_pack(struct place place)
{
    return (uint64_t)place.epoch << 32 | (uint64_t)place.state << 16 | (uint64_t)place.slot << 8 | place.tile;
}

struct place place_unpack(uint64_t word)
{
    return (struct place){(uint32_t)(word >> 32), (uint8_t)(word >> 16), (uint8_t)(word >> 8), (uint8_t)word};
}

struct place shared_place(struct shared_memory *shared, uint32_t process)
{
    return place_unpack(atomic_load(&shared->locations[process].word));
}

bool shared_commit(struct shared_memory *shared, uint32_t process, uint64_t from, struct place to)
{
    to.epoch = place_unpack(from).epoch + 1;
    return atomic_compare_exchange_strong(&shared->locations[process].word, &from, place_pack(to));
}

bool shared_is_here(const struct shared_memory *shared, uint32_t tile)
{
    return tile - shared->first_tile < shared->here;
}

void shared_set_gateway(int fd)
{
    gateway = fd;
}

void shared_ring(struct shared_memory *shared, uint32_t tile)
{
    if (!shared_is_here(shared, tile)) {
        eventfd_write(gateway, 1);
        return;
    }
    atomic_fetch_add(&shared->tiles[tile].bell, 1);
    if (!atomic_load(&shared->tiles[tile].polling))
        shared_wake(&shared->tiles[tile].bell);
}

void shared_clear_move(struct move *move)
{
    memset((uint8_t *)move + sizeof(move->step), 0, offsetof(struct move, piece) - sizeof(move->step));
}

void shared_ring_process(struct shared_memory *shared, uint32_t process)
{
    struct place place = shared_place(shared, process);

    if (place.state == PLACE_RUNNING && place.tile < shared->tile_count)
        shared_ring(shared, place.tile);
}

void shared_ring_processes(struct shared_memory *shared, uint32_t processes)
{
    for (uint32_t process = 0; processes; process++, processes >>= 1)
        if (processes & 1)
            shared_ring_process(shared, process);
}

void shared_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec limit = {timeout_ns / 1000000000, timeout_ns % 1000000000};

    syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &limit, NULL, 0);
}

void shared_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int64_t shared_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
