/* See tile_processes.h. */
#include "tile_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 60000 /* for all tiles to be there, on a loaded machine */
#define STOP_MS 3000   /* for a tile to end by itself */

static int find_program(char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 16);

    if (length < 0)
        return -errno;
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "wherry-tile");
    return access(path, X_OK) < 0 ? -errno : 0;
}

static void become_tile(int shared_fd, int event_fd, const char *program, uint32_t index, pid_t parent)
{
    char number[16];
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* Each may have the number that the other needs: both are moved above 10 first, then to their places. */
    dup2(fcntl(shared_fd, F_DUPFD, 10), SHARED_MEMORY_FD);
    dup2(fcntl(event_fd, F_DUPFD, 10), EVENT_FD);
    for (int fd = EVENT_FD + 1; fd < 64; fd++)
        close(fd);
    snprintf(number, sizeof(number), "%u", index);
    execl(program, "wherry-tile", number, (char *)NULL);
    _exit(127);
}

int tiles_start(struct shared_memory *shared, int shared_fd, int event_fd)
{
    int64_t deadline = shared_now() + START_MS * 1000000ll;
    pid_t self = getpid(), pid;
    char program[PATH_MAX];
    int error = find_program(program);

    if (error < 0)
        return error;
    for (uint32_t index = 0; index < shared->tile_count; index++) {
        struct tile_record *record = &shared->tiles[index];

        if (!shared_is_here(shared, index)) {
            atomic_store(&record->ready, 1);
            atomic_store(&record->alive, 1);
            continue;
        }
        pid = fork();
        if (pid < 0)
            return -errno;
        if (pid == 0)
            become_tile(shared_fd, event_fd, program, index, self);
        record->pid = pid;
        atomic_store(&record->alive, 1);
    }
    for (uint32_t index = 0; index < shared->tile_count; index++)
        while (!atomic_load(&shared->tiles[index].ready)) {
            tiles_reap(shared);
            if (!atomic_load(&shared->tiles[index].alive))
                return -ECHILD;
            if (shared_now() > deadline)
                return -ETIMEDOUT;
            usleep(1000);
        }
    return 0;
}

static void lose(struct shared_memory *shared, uint32_t tile, int status)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        uint64_t word = atomic_load(&shared->locations[process].word);
        struct place place = place_unpack(word);

        if (place.state != PLACE_RUNNING || place.tile != tile)
            continue;
        snprintf(shared->locations[process].why, REASON_SIZE, "tile %u died by signal %d", tile,
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        place.state = PLACE_LOST;
        if (!shared_commit(shared, process, word, place)) /* it has moved away in time */
            shared->locations[process].why[0] = 0;
    }
}

static void end_moves(struct shared_memory *shared, uint32_t dead)
{
    for (uint32_t to = 0; to < shared->tile_count; to++) {
        struct move *move = &shared->moves[to];
        uint32_t step = atomic_load(&move->step);
        uint32_t other = to == dead ? move->from : to;
        bool other_is_dead = !shared_is_here(shared, other) || !atomic_load(&shared->tiles[other].alive);
        bool is_gone = move->committed && !shared_is_here(shared, to); /* the process is on another host */
        bool undecided = atomic_load(&shared->locations[move->process].word) == move->place;

        if ((to != dead && move->from != dead) || is_gone || step == MOVE_NONE || step >= MOVE_DONE)
            continue;
        /* A living side ends the move itself: a source that waits for a dead destination resumes the process. */
        if (other_is_dead || (to == dead && (step < MOVE_FROZEN || !undecided))) {
            snprintf(move->why, sizeof(move->why), "tile %u died", dead);
            atomic_compare_exchange_strong(&move->step, &step, MOVE_ABORTED);
        }
        shared_wake(&move->step);
    }
}

void tiles_reap(struct shared_memory *shared)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t index = 0; index < shared->tile_count; index++)
            if (shared->tiles[index].pid == pid) {
                atomic_store(&shared->tiles[index].alive, 0);
                lose(shared, index, status);
                end_moves(shared, index);
                for (uint32_t other = 0; other < shared->tile_count; other++)
                    shared_ring(shared, other); /* threads that wait for a lost process must look again */
            }
}

void tiles_stop(struct shared_memory *shared, bool at_once)
{
    int64_t deadline = shared_now() + (at_once ? 0 : STOP_MS * 1000000ll);

    atomic_store(&shared->stop, 1);
    for (uint32_t index = 0; index < shared->tile_count; index++) {
        struct tile_record *record = &shared->tiles[index];

        if (!record->pid)
            continue;
        while (atomic_load(&record->alive) && shared_now() < deadline) {
            shared_ring(shared, index);
            usleep(2000);
            tiles_reap(shared);
        }
        if (atomic_load(&record->alive)) {
            kill(record->pid, SIGKILL);
            waitpid(record->pid, NULL, 0);
        }
    }
}
