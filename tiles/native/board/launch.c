/* See launch.h. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../shared/slots.h"
#include "hosts/processes.h"
#include "program_loader.h"

#define FILE_MAX (8 << 20) /* bytes of a program's file; its image is a fraction of that */

/* The first process whose end was reported after the end number `after`; 0: there is none. */
static uint32_t find_told(struct board *board, uint64_t after)
{
    uint32_t first = 0;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = shared_place(board->shared, process);

        if ((place.state == PLACE_ENDED || place.state == PLACE_LOST) && board->events.told[process] > after &&
            (!first || board->events.told[process] < board->events.told[first]))
            first = process;
    }
    return first;
}

/*
 * Numbers for new processes: unused ones first, then those of processes whose end was reported, the longest ago first,
 * so that no message to the process that had the number before is still on its way.
 */
static bool find_processes(struct board *board, uint32_t count, uint32_t processes[TILE_MAX])
{
    uint32_t found = 0, ended = 0;

    for (uint32_t process = 1; found < count && process < PROCESS_MAX; process++)
        if (shared_place(board->shared, process).state == PLACE_FREE)
            processes[found++] = process;
    while (found < count && (ended = find_told(board, ended ? board->events.told[ended] : 0)))
        processes[found++] = ended;
    return found == count;
}

/* Read, not mapped: a file that is truncated meanwhile must not end the name server. */
static int read_file(const char *path, uint8_t **file, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = 0; /* or a named pipe would wait for a writer */
    struct stat facts;
    ssize_t count = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &facts) < 0 || !S_ISREG(facts.st_mode) || facts.st_size == 0)
        error = -ENOEXEC;
    else if (facts.st_size > FILE_MAX)
        error = -EFBIG;
    *file = error ? NULL : malloc((size_t)facts.st_size);
    if (!error && !*file)
        error = -ENOMEM;
    for (*size = 0; !error && *size < (size_t)facts.st_size; *size += (size_t)count) {
        count = read(fd, *file + *size, (size_t)facts.st_size - *size);
        if (count < 0)
            error = -errno;
        if (count <= 0)
            break;
    }
    if (error)
        free(*file);
    close(fd);
    return error;
}

static int load(struct board *board, uint32_t process, uint32_t slot, int argc, char *const *argv, char *why,
                size_t room)
{
    struct user_area *area = shared_area(board->shared, slot);
    const char *wrong;
    uint8_t *file = NULL;
    size_t size = 0;
    int error = read_file(argv[0], &file, &size);

    if (error < 0) {
        snprintf(why, room, "%s: %s", argv[0], strerror(-error));
        return error;
    }
    user_area_init(area, process, board->shared->xfeatures, board->shared->xsize);
    wrong = program_load(file, size, argc, argv, shared_image(board->shared, slot), area);
    free(file);
    if (!wrong)
        return 0;
    snprintf(why, room, "%s: %s", argv[0], wrong);
    return -ENOEXEC;
}

static int choose_tile(struct board *board, uint32_t *tile, char *why, size_t room)
{
    for (uint32_t index = 0; *tile == NO_TILE && index < board->shared->tile_count; index++)
        if (slots_is_free(board->shared, index))
            *tile = index;
    if (*tile != NO_TILE && *tile >= board->shared->tile_count)
        snprintf(why, room, "there is no tile %u; there are %u", *tile, board->shared->tile_count);
    else if (*tile == NO_TILE)
        snprintf(why, room, "every tile has a process, or is dead");
    else if (!slots_is_free(board->shared, *tile))
        snprintf(why, room, "tile %u has a process, expects one, or is dead", *tile);
    else
        return 0;
    return *tile != NO_TILE && *tile >= board->shared->tile_count ? -ENOENT : -EBUSY;
}

/* Resets the location record for a new process, so that nothing is taken for an older process of that number. */
static void prepare_location(struct board *board, uint32_t rank, uint32_t ranks, const uint32_t *processes,
                             const char *program)
{
    struct location *location = &board->shared->locations[processes[rank]];
    const char *slash = strrchr(program, '/');

    shared_commit(board->shared, processes[rank], atomic_load(&location->word), (struct place){.state = PLACE_FREE});
    endpoint_clear(board->shared, processes[rank]);
    location->status = 0;
    location->why[0] = 0;
    location->rank = rank;
    location->ranks = ranks;
    for (uint32_t other = 0; other < ranks; other++)
        location->members[other] = (uint8_t)processes[other];
    atomic_store(&location->end, 0);
    atomic_store(&location->moves, 0);
    snprintf(location->program, NAME_SIZE, "%.63s", slash ? slash + 1 : program);
    board_clear_process(board, processes[rank]);
    if (board->net.hosts > 1)
        directory_announce(&board->directory, processes[rank]);
}

static int launch_rank(struct board *board, uint32_t tile, uint32_t process, int argc, char *const *argv, char *why,
                       size_t room)
{
    struct shared_memory *shared = board->shared;
    int error = choose_tile(board, &tile, why, room);
    uint64_t word;
    uint32_t slot;

    if (error < 0)
        return error;
    if (!slots_reserve(board->shared, &slot)) {
        snprintf(why, room, "there are too many processes");
        return -EAGAIN;
    }
    error = load(board, process, slot, argc, argv, why, room);
    if (error < 0)
        return error;
    word = atomic_load(&shared->locations[process].word);
    if (!shared_is_here(shared, tile)) {
        user_area_seal(shared_area(shared, slot));
        coordinator_start(&board->coordinator, process, tile, shared_area(shared, slot), shared_image(shared, slot));
        slot = NO_SLOT;
    } else {
        shared_area(shared, slot)->epoch = place_unpack(word).epoch + 1;
    }
    shared_commit(shared, process, word,
                  (struct place){.state = PLACE_RUNNING, .slot = (uint8_t)slot, .tile = (uint8_t)tile});
    if (board->net.hosts > 1)
        directory_announce(&board->directory, process);
    shared_ring(shared, tile);
    return 0;
}

static uint32_t count_free_tiles(struct board *board)
{
    uint32_t count = 0;

    for (uint32_t tile = 0; tile < board->shared->tile_count; tile++)
        count += slots_is_free(board->shared, tile);
    return count;
}

int launch_program(struct board *board, uint32_t tile, uint32_t ranks, int argc, char *const *argv,
                   uint32_t processes[TILE_MAX], char *why, size_t room)
{
    uint32_t free_tiles = count_free_tiles(board);
    int error = 0;

    if (ranks > 1 && ranks > free_tiles) {
        snprintf(why, room, "%u ranks need %u free tiles; there are %u", ranks, ranks, free_tiles);
        return -EBUSY;
    }
    if (!find_processes(board, ranks, processes)) {
        snprintf(why, room, "there are too many processes");
        return -EAGAIN;
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        prepare_location(board, rank, ranks, processes, argv[0]);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        error = launch_rank(board, tile, processes[rank], argc, argv, why, room);
        if (error < 0)
            break;
    }
    for (uint32_t rank = 0; error < 0 && rank < ranks; rank++) /* only if the file changed in between */
        processes_end(&board->net, processes[rank], 1, why);
    return error;
}
