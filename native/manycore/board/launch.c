/* Starts tiles and programs; see board.h. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../elf.h"
#include "board.h"

#define START_MS 20000 /* for all tiles to be there, on a loaded machine */
#define STOP_MS 3000   /* for a tile to end by itself */
#define FILE_MAX (8 << 20) /* bytes of a program's file; its image is a fraction of that */

static int find_program(char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 16);

    if (length < 0)
        return -errno;
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "wherry-tile");
    return access(path, X_OK) < 0 ? -errno : 0;
}

static void become_tile(const struct board *board, const char *program, uint32_t index, pid_t parent)
{
    char number[16];
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* The descriptors may lie in each other's way: first above, then down to their places. */
    dup2(fcntl(board->window_fd, F_DUPFD, 10), WINDOW_FD);
    dup2(fcntl(board->event_fd, F_DUPFD, 10), EVENT_FD);
    for (int fd = EVENT_FD + 1; fd < 64; fd++)
        close(fd);
    snprintf(number, sizeof(number), "%u", index);
    execl(program, "wherry-tile", number, (char *)NULL);
    _exit(127);
}

int launch_tiles(struct board *board)
{
    int64_t deadline = window_now() + START_MS * 1000000ll;
    pid_t self = getpid(), pid;
    char program[PATH_MAX];
    int error = find_program(program);

    if (error < 0)
        return error;
    for (uint32_t index = 0; index < board->window->tile_count; index++) {
        struct tile_record *record = &board->window->tiles[index];

        if (!window_is_here(board->window, index)) {
            atomic_store(&record->ready, 1);
            atomic_store(&record->alive, 1);
            continue;
        }
        pid = fork();
        if (pid < 0)
            return -errno;
        if (pid == 0)
            become_tile(board, program, index, self);
        record->pid = pid;
        atomic_store(&record->alive, 1);
    }
    for (uint32_t index = 0; index < board->window->tile_count; index++)
        while (!atomic_load(&board->window->tiles[index].ready)) {
            launch_reap(board);
            if (!atomic_load(&board->window->tiles[index].alive))
                return -ECHILD;
            if (window_now() > deadline)
                return -ETIMEDOUT;
            usleep(1000);
        }
    return 0;
}

static void lose(struct board *board, uint32_t tile, int status)
{
    struct window *window = board->window;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        uint64_t word = atomic_load(&window->locations[process].word);
        struct place place = place_unpack(word);

        if (place.state != PLACE_RUNNING || place.tile != tile)
            continue;
        snprintf(window->locations[process].why, REASON_SIZE, "tile %u died by signal %d", tile,
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        place.state = PLACE_LOST;
        if (!window_commit(window, process, word, place)) /* it has just moved away */
            window->locations[process].why[0] = 0;
    }
}

static void end_moves(struct board *board, uint32_t dead)
{
    for (uint32_t to = 0; to < board->window->tile_count; to++) {
        struct move *move = &board->window->moves[to];
        uint32_t step = atomic_load(&move->step);
        uint32_t other = to == dead ? move->from : to;
        bool other_is_dead = !window_is_here(board->window, other) || !atomic_load(&board->window->tiles[other].alive);
        bool is_gone = move->committed && !window_is_here(board->window, to); /* nothing of it is here any more */
        bool undecided = atomic_load(&board->window->locations[move->process].word) == move->place;

        if ((to != dead && move->from != dead) || is_gone || step == MOVE_NONE || step >= MOVE_DONE)
            continue;
        /* Who lives ends it: a source that waits for the commit of a dead destination takes the process back. */
        if (other_is_dead || (to == dead && (step < MOVE_FROZEN || !undecided))) {
            snprintf(move->why, sizeof(move->why), "tile %u died", dead);
            atomic_compare_exchange_strong(&move->step, &step, MOVE_ABORTED);
        }
        window_wake(&move->step);
    }
}

void launch_reap(struct board *board)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t index = 0; index < board->window->tile_count; index++)
            if (board->window->tiles[index].pid == pid) {
                atomic_store(&board->window->tiles[index].alive, 0);
                lose(board, index, status);
                end_moves(board, index);
                for (uint32_t other = 0; other < board->window->tile_count; other++)
                    window_ring(board->window, other); /* who sends to what is lost waits in vain */
            }
}

void launch_stop(struct board *board)
{
    int64_t deadline = window_now() + (board->net.alone ? 0 : STOP_MS * 1000000ll);
    struct window *window = board->window;

    atomic_store(&window->stop, 1);
    for (uint32_t index = 0; index < window->tile_count; index++) {
        struct tile_record *record = &window->tiles[index];

        if (!record->pid)
            continue;
        while (atomic_load(&record->alive) && window_now() < deadline) {
            window_ring(window, index);
            usleep(2000);
            launch_reap(board);
        }
        if (atomic_load(&record->alive)) {
            kill(record->pid, SIGKILL);
            waitpid(record->pid, NULL, 0);
        }
    }
}

/* Of the processes whose end was told after the so many-th, the first; 0: there is none. */
static uint32_t find_told(const struct board *board, uint64_t after)
{
    uint32_t first = 0;

    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct place place = window_place(board->window, process);

        if ((place.state == PLACE_ENDED || place.state == PLACE_LOST) && board->told[process] > after &&
            (!first || board->told[process] < board->told[first]))
            first = process;
    }
    return first;
}

/*
 * Numbers for new processes: unused ones first, then those of ended ones whose end has been told, the longest ago first,
 * so that nothing is on its way any more that somebody sent to the one that had the number.
 */
static bool find_processes(struct board *board, uint32_t count, uint32_t processes[TILE_MAX])
{
    uint32_t found = 0, ended = 0;

    for (uint32_t process = 1; found < count && process < PROCESS_MAX; process++)
        if (window_place(board->window, process).state == PLACE_FREE)
            processes[found++] = process;
    while (found < count && (ended = find_told(board, ended ? board->told[ended] : 0)))
        processes[found++] = ended;
    return found == count;
}

/* Read, not mapped: a file that is made shorter meanwhile must not end us. */
static int read_file(const char *path, uint8_t **file, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), error = 0;
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
    struct uarea *area = window_area(board->window, slot);
    const char *wrong;
    uint8_t *file = NULL;
    size_t size = 0;
    int error = read_file(argv[0], &file, &size);

    if (error < 0) {
        snprintf(why, room, "%s: %s", argv[0], strerror(-error));
        return error;
    }
    uarea_init(area, process, board->window->xfeatures, board->window->xsize);
    wrong = elf_load(file, size, argc, argv, window_image(board->window, slot), area);
    free(file);
    if (!wrong)
        return 0;
    snprintf(why, room, "%s: %s", argv[0], wrong);
    return -ENOEXEC;
}

static int choose_tile(const struct board *board, uint32_t *tile, char *why, size_t room)
{
    for (uint32_t index = 0; *tile == NO_TILE && index < board->window->tile_count; index++)
        if (moves_is_free(board, index))
            *tile = index;
    if (*tile != NO_TILE && *tile >= board->window->tile_count)
        snprintf(why, room, "there is no tile %u; there are %u", *tile, board->window->tile_count);
    else if (*tile == NO_TILE)
        snprintf(why, room, "every tile has a process, or is dead");
    else if (!moves_is_free(board, *tile))
        snprintf(why, room, "tile %u has a process, expects one, or is dead", *tile);
    else
        return 0;
    return *tile != NO_TILE && *tile >= board->window->tile_count ? -ENOENT : -EBUSY;
}

/* Makes the location record of a process that is not there yet; from now on nobody takes it for an older one. */
static void prepare_location(struct board *board, uint32_t rank, uint32_t ranks, const uint32_t *processes,
                             const char *program)
{
    struct location *location = &board->window->locations[processes[rank]];
    const char *slash = strrchr(program, '/');

    window_commit(board->window, processes[rank], atomic_load(&location->word), (struct place){.state = PLACE_FREE});
    endpoint_clear(board->window, processes[rank]);
    location->status = 0;
    location->why[0] = 0;
    location->rank = rank;
    location->ranks = ranks;
    for (uint32_t other = 0; other < ranks; other++)
        location->members[other] = (uint8_t)processes[other];
    atomic_store(&location->end, 0);
    atomic_store(&location->moves, 0);
    snprintf(location->program, NAME_SIZE, "%.63s", slash ? slash + 1 : program);
    board->told[processes[rank]] = 0;
    board->outputs[processes[rank]].count = 0;
    board->outputs[processes[rank]].dropped = 0;
    board->awaits[processes[rank]].name[0] = 0;
    relay_clear(board, processes[rank]);
    if (board->net.hosts > 1)
        net_announce(board, processes[rank]);
}

static int launch_rank(struct board *board, uint32_t tile, uint32_t process, int argc, char *const *argv, char *why,
                       size_t room)
{
    struct window *window = board->window;
    int error = choose_tile(board, &tile, why, room);
    uint64_t word;
    uint32_t slot;

    if (error < 0)
        return error;
    if (!moves_reserve_slot(board, &slot)) {
        snprintf(why, room, "there are too many processes");
        return -EAGAIN;
    }
    error = load(board, process, slot, argc, argv, why, room);
    if (error < 0)
        return error;
    word = atomic_load(&window->locations[process].word);
    if (!window_is_here(window, tile)) {
        uarea_seal(window_area(window, slot));
        transfer_start(board, process, tile, window_area(window, slot), window_image(window, slot));
        slot = NO_SLOT;
    } else {
        window_area(window, slot)->epoch = place_unpack(word).epoch + 1;
    }
    window_commit(window, process, word,
                  (struct place){.state = PLACE_RUNNING, .slot = (uint8_t)slot, .tile = (uint8_t)tile});
    if (board->net.hosts > 1)
        net_announce(board, process);
    window_ring(window, tile);
    return 0;
}

static uint32_t count_free_tiles(const struct board *board)
{
    uint32_t count = 0;

    for (uint32_t tile = 0; tile < board->window->tile_count; tile++)
        count += moves_is_free(board, tile);
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
        names_end_process(board, processes[rank], 1, why);
    return error;
}
