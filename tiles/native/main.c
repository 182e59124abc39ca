/*
 * wherry-tile: one tile. Started by wherry-tiles, never by hand: descriptor 3 is the shared memory, 4 rings the name
 * server.
 *
 *   wherry-tile NUMBER
 *   wherry-tile --dot      prints the graph of a move's tasks, for Graphviz
 *   wherry-tile --machine  prints which facilities for tiles this machine has, as JSON
 *
 * The first thread is the master core. It sleeps on the tile's bell and, when that rings, looks at everything that
 * concerns it: a process that is ours by its location entry, a move to or from here, kernel calls to execute, messages
 * for threads that wait. It never runs user code and waits for nobody but the other side of a move.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kernel/call_table.h"
#include "kernel/core.h"
#include "kernel/kernel_call.h"
#include "kernel/message_calls.h"
#include "kernel/process.h"
#include "kernel/scheduler.h"
#include "migration/move_engine.h"
#include "migration/move_graph.h"
#include "shared/cpu.h"
#include "shared/fault_injection.h"
#include "shared/mesh.h"

static int map_gate(void)
{
    void **gate = mmap((void *)(uintptr_t)GATE_ADDRESS, PAGE_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    if (gate == MAP_FAILED)
        return -errno;
    gate[0] = (void *)(uintptr_t)core_gate;
    return mprotect(gate, PAGE_SIZE, PROT_READ) < 0 ? -errno : 0;
}

/* Lock held from here on. */
static void execute_calls(struct tile *tile)
{
    for (int slot = 0; slot < THREAD_MAX; slot++) {
        struct thread *thread = &tile->area->threads[slot];

        if (!(tile->area->used >> slot & 1) || thread->state != THREAD_CALLING || tile->ending)
            continue;
        if (call_execute(tile, slot, 0))
            call_complete(tile, slot, (int64_t)thread->context.rax);
    }
}

static void answer_wish(struct tile *tile)
{
    int32_t answer = atomic_exchange(&tile->shared->tiles[tile->index].answer, 0);

    if (!answer)
        return;
    for (int slot = 0; slot < THREAD_MAX; slot++)
        if (tile->area->used >> slot & 1 && tile->area->threads[slot].state == THREAD_WAITING &&
            tile->area->threads[slot].wait == WAIT_MOVE)
            call_complete(tile, slot, answer);
    if (tile->stepping) {
        tile->stepping = false;
        sched_wake_cores(tile);
    }
}

/* The name server wants the process to end. */
static void obey_end(struct tile *tile)
{
    struct location *location = &tile->shared->locations[tile->process];
    uint32_t end = atomic_load(&location->end);

    if (!end || tile->ending)
        return;
    tile->ending = true;
    tile->status = (int)end - 1;
    memcpy(tile->why, location->why, sizeof(tile->why));
}

/* Takes the cores from their threads when others wait for one. Returns whether there will be reason to do it again. */
static bool tick(struct tile *tile)
{
    if (tile->area->ready_first < 0)
        return false;
    for (uint32_t index = 1; index < tile->shared->core_count; index++)
        if (tile_core(tile, index)->thread >= 0)
            pthread_kill(tile_core(tile, index)->pthread, PREEMPT_SIGNAL);
    return true;
}

/* Does the master's work for the process. Returns whether it is to end. */
static bool serve(struct tile *tile, bool time_is_up)
{
    bool ending;

    pthread_mutex_lock(&tile->lock);
    tile->next_due = 0;
    if (!tile->area || tile->frozen) { /* a move has it */
        pthread_mutex_unlock(&tile->lock);
        return false;
    }
    if (mesh_is_declared(tile->shared))
        endpoint_look_again(&tile->shared->endpoints[tile->process]);
    obey_end(tile);
    execute_calls(tile);
    answer_wish(tile);
    operations_advance(tile);
    sched_retry(tile, WAIT_SYNC, -1, THREAD_MAX);
    sched_retry(tile, WAIT_MAIL, -1, THREAD_MAX);
    sched_retry(tile, WAIT_SEND, -1, THREAD_MAX);
    if (time_is_up)
        tile->ticking = tick(tile);
    else
        tile->ticking = tile->area->ready_first >= 0;
    if (mesh_is_declared(tile->shared))
        tile->next_due = endpoint_next_due(&tile->shared->endpoints[tile->process]);
    ending = tile->ending;
    pthread_mutex_unlock(&tile->lock);
    return ending;
}

static void end(struct tile *tile)
{
    char why[REASON_SIZE];

    process_freeze(tile);
    memcpy(why, tile->why, sizeof(why));
    process_end(tile, tile->status, why);
}

/*
 * Milliseconds to the end of our lease; -1: there is none. When it is over, our processes are reported lost, so
 * nothing runs on.
 */
static int look_at_lease(const struct tile *tile)
{
    int64_t lease = atomic_load(&tile->shared->lease), left = lease - shared_now();

    if (!lease)
        return -1;
    if (left <= 0)
        kill(getpid(), SIGKILL);
    return 1 + (int)(left / 1000000);
}

/* Nanoseconds that the master may sleep; -1: until its bell rings. `lease` is in milliseconds, or -1. */
static int64_t time_to_sleep(struct tile *tile, int lease)
{
    int milliseconds = tile->ticking ? PREEMPT_MS : move_engine_is_active(tile) ? SLICE_MS : lease;
    int64_t limit = milliseconds < 0 ? -1 : milliseconds * 1000000ll, left = tile->next_due - shared_now();

    if (!tile->next_due)
        return limit;
    return left < 0 ? 0 : limit < 0 || left < limit ? left : limit;
}

static void run_master(struct tile *tile)
{
    struct tile_record *record = &tile->shared->tiles[tile->index];
    int64_t next_tick = 0;

    while (!atomic_load(&tile->shared->stop)) {
        uint32_t seen = atomic_load(&record->bell);
        bool time_is_up = shared_now() >= next_tick;
        int lease;

        move_engine_run(tile);
        if (serve(tile, time_is_up))
            end(tile);
        if (!tile->area)
            tile->ticking = false;
        if (time_is_up)
            next_tick = shared_now() + PREEMPT_MS * 1000000ll;
        lease = look_at_lease(tile);
        shared_wait(&record->bell, seen, time_to_sleep(tile, lease));
    }
}

static void stop_cores(struct tile *tile)
{
    pthread_mutex_lock(&tile->lock);
    tile->stopping = true;
    pthread_mutex_unlock(&tile->lock);
    if (tile->area)
        process_freeze(tile);
    for (uint32_t index = 1; index < tile->shared->core_count; index++) {
        pthread_mutex_lock(&tile->lock);
        pthread_cond_signal(&tile_core(tile, index)->wake);
        pthread_mutex_unlock(&tile->lock);
        pthread_join(tile_core(tile, index)->pthread, NULL);
        free(tile_core(tile, index)->signal_stack);
    }
}

static int start(struct tile *tile, struct move_side *side)
{
    int error = shared_open(SHARED_MEMORY_FD, &tile->shared);
    pthread_mutexattr_t spins;

    if (error < 0)
        return error;
    if (tile->index >= tile->shared->tile_count)
        return -EINVAL;
    pthread_mutexattr_init(&spins);
    pthread_mutexattr_settype(&spins, PTHREAD_MUTEX_ADAPTIVE_NP); /* it is held for less than a wake-up takes */
    pthread_mutex_init(&tile->lock, &spins);
    pthread_cond_init(&tile->quiet, NULL);
    move_engine_start(tile, side);
    error = map_gate();
    if (error == 0)
        error = core_install_handlers(tile);
    for (uint32_t index = 1; error == 0 && index < tile->shared->core_count; index++) {
        tile_core(tile, index)->tile = tile;
        tile_core(tile, index)->index = (int)index;
        error = core_start(tile_core(tile, index));
    }
    return error;
}

static int print_machine(void)
{
    static const char *const trackings[TRACKING_KINDS] = {"none", "mprotect", "userfaultfd"};
    const char *lacks;
    enum tracking_kind kind = dirty_tracking_probe(&lacks);

    printf("{\"tracking\": \"%s\", \"lacks\": \"%s\", \"system_calls_refused\": %s, \"extended_state\": %u, "
           "\"short_turns\": %s}\n",
           trackings[kind], lacks ? lacks : "", core_forbid_system_calls() == 0 ? "true" : "false", cpu_xsize(),
           cpu_ask_short_turns() ? "true" : "false");
    return 0;
}

int main(int argc, char **argv)
{
    static struct tile tile = {.event_fd = EVENT_FD};
    static struct move_side side;
    int error;

    tile.step_mode = fault_number("step:");
    tile.cpus = cpu_count();
    if (argc == 2 && strcmp(argv[1], "--dot") == 0) {
        tasks_print(&move_graph, stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--machine") == 0)
        return print_machine();

    if (argc != 2) {
        fprintf(stderr, "wherry-tile is started by wherry-tiles\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tile.index = (uint32_t)strtoul(argv[1], NULL, 10);
    shared_set_gateway(EVENT_FD);
    error = start(&tile, &side);
    if (error < 0) {
        fprintf(stderr, "wherry-tile: tile %u cannot start: %s\n", tile.index,
                error == -EPROTO ? "it is of another build than wherry-tiles" : strerror(-error));
        return 1;
    }
    cpu_ask_short_turns();
    if (mesh_is_declared(tile.shared))
        prctl(PR_SET_TIMERSLACK, 1); /* nanosecond: messages under way are not held up by Linux's usual 50 us */
#if defined(WHERRY_TILE_JOINED) || defined(WHERRY_TILE_MIXED)
    atomic_store(&tile.shared->fixed, 1);
#endif
    atomic_store(&tile.shared->tiles[tile.index].ready, 1);
    eventfd_write(EVENT_FD, 1);
    run_master(&tile);
    stop_cores(&tile);
    return 0;
}
