/* See window.h. */
#include "window.h"

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

#define WINDOW_MAGIC 0x776f646e69776b6dull

static int gateway = -1;

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static uint64_t areas_offset(void)
{
    return round_up(sizeof(struct window), PAGE_SIZE);
}

uint64_t window_image_offset(uint32_t slot)
{
    return round_up(areas_offset() + TILE_MAX * sizeof(struct uarea), USER_SIZE) + (uint64_t)slot * USER_SIZE;
}

struct uarea *window_area(struct window *window, uint32_t slot)
{
    return (struct uarea *)((uint8_t *)window + areas_offset()) + slot;
}

uint8_t *window_image(struct window *window, uint32_t slot)
{
    return (uint8_t *)window + window_image_offset(slot);
}

static int map(int fd, struct window **window)
{
    void *at = mmap(NULL, window_image_offset(TILE_MAX), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return -errno;
    *window = at;
    return 0;
}

int window_create(uint32_t tile_count, uint32_t core_count, struct window **window)
{
    int fd = memfd_create("wherry-tiles", MFD_CLOEXEC), error;
    pthread_mutexattr_t robust;

    if (fd < 0)
        return -errno;
    error = ftruncate(fd, (off_t)window_image_offset(TILE_MAX)) < 0 ? -errno : map(fd, window);
    if (error < 0) {
        close(fd);
        return error;
    }
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int process = 0; process < PROCESS_MAX; process++)
        pthread_mutex_init(&(*window)->endpoints[process].lock, &robust);
    pthread_mutexattr_destroy(&robust);
    (*window)->build = WHERRY_TILES_BUILD;
    (*window)->tile_count = (*window)->here = tile_count;
    (*window)->core_count = core_count;
    (*window)->xfeatures = cpu_xfeatures();
    (*window)->xsize = cpu_xsize();
    (*window)->magic = WINDOW_MAGIC;
    return fd;
}

int window_open(int fd, struct window **window)
{
    int error = map(fd, window);

    if (error < 0)
        return error;
    if ((*window)->magic != WINDOW_MAGIC || (*window)->build != WHERRY_TILES_BUILD ||
        (*window)->xfeatures != cpu_xfeatures() || (*window)->xsize != cpu_xsize())
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

struct place window_place(struct window *window, uint32_t process)
{
    return place_unpack(atomic_load(&window->locations[process].word));
}

bool window_commit(struct window *window, uint32_t process, uint64_t from, struct place to)
{
    to.epoch = place_unpack(from).epoch + 1;
    return atomic_compare_exchange_strong(&window->locations[process].word, &from, place_pack(to));
}

bool window_is_here(const struct window *window, uint32_t tile)
{
    return tile - window->first_tile < window->here;
}

void window_set_gateway(int fd)
{
    gateway = fd;
}

void window_ring(struct window *window, uint32_t tile)
{
    if (!window_is_here(window, tile)) {
        eventfd_write(gateway, 1);
        return;
    }
    atomic_fetch_add(&window->tiles[tile].bell, 1);
    if (!atomic_load(&window->tiles[tile].polling))
        window_wake(&window->tiles[tile].bell);
}

void window_clear_move(struct move *move)
{
    memset((uint8_t *)move + sizeof(move->step), 0, offsetof(struct move, piece) - sizeof(move->step));
}

void window_ring_process(struct window *window, uint32_t process)
{
    struct place place = window_place(window, process);

    if (place.state == PLACE_RUNNING && place.tile < window->tile_count)
        window_ring(window, place.tile);
}

void window_ring_processes(struct window *window, uint32_t processes)
{
    for (uint32_t process = 0; processes; process++, processes >>= 1)
        if (processes & 1)
            window_ring_process(window, process);
}

void window_wait(_Atomic uint32_t *word, uint32_t seen, int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};

    syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ms < 0 ? NULL : &limit, NULL, 0);
}

void window_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int64_t window_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
