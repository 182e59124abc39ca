#include "record.h"

#include "fortran.h"
#include "library.h"
#include "objects.h"
#include "shared.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
    SECOND = 1000 * 1000 * 1000, /* ns */
    SHORT_PAUSE = 1000,          /* ns between two tests in which a program does nothing else */
    TIME_SHIFT = 10,             /* of ticks in the ring */
    CREEP = 10,                  /* `fastest` goes up by 1 / 2^CREEP of the difference */
    LINE = 64,                   /* bytes of a cache line */
    THREADS_MULTIPLE = 3,        /* MPI_THREAD_MULTIPLE in all libraries */
    NOBODY = -1,
    SPINS = 100, /* looks at a lock until a thread yields */
};

__attribute__((visibility("default"), used)) struct anchor wherry_mpi_anchor = {.magic = ANCHOR_MAGIC};
struct page *page;
bool counter_is_steady;
bool several_threads;
_Thread_local bool inside_mpi, is_first_thread;

static struct cell *cells;
static struct ring_entry *ring;
static struct communicator_use *uses;
static struct peer *peers;
static uint64_t short_pause; /* ticks */
static bool tested; /* the last call was a test */
static char lock;

static void take_lock(void)
{
    for (unsigned tries = 0; several_threads && __atomic_test_and_set(&lock, __ATOMIC_ACQUIRE);)
        if (++tries % SPINS == 0) /* the thread that counts has lost its processor, perhaps to this one */
            sched_yield();
}

static void release_lock(void)
{
    if (several_threads)
        __atomic_clear(&lock, __ATOMIC_RELEASE);
}

static unsigned class_of(uint64_t bytes)
{
    unsigned bits = bytes ? 64 - (unsigned)__builtin_clzll(bytes) : 0, class = (bits + 1) / 2;

    return class < CLASSES ? class : CLASSES - 1;
}

/*
 * The wall clock at a moment of the counter, so that a reader can compute how long ago that was, and the counter's
 * rate. A rate far from the known one is taken when two looks in a row agree: else a clock was set, by a move or by
 * hand.
 */
static void look_at_clock(uint64_t time)
{
    static double strange;
    uint64_t wall = nanoseconds(CLOCK_REALTIME), past = wall - page->seen_wall, counted = time - page->seen;
    double rate = (double)counted / (double)past * SECOND, known = (double)page->ticks_per_second;

    if ((rate > known / 2 && rate < known * 2) || (rate > strange * 0.9 && rate < strange * 1.1)) {
        page->ticks_per_second = (uint64_t)rate;
        strange = 0;
    } else
        strange = rate;
    page->seen = time;
    page->seen_wall = wall;
}

/* Counts a call that ends now. Returns how long it took. */
static uint64_t count(unsigned operation, uint64_t begin, uint64_t bytes, int with, bool is_test)
{
    uint64_t end = ticks(), took = end > begin ? end - begin : 0; /* a move may set the counter back */
    unsigned class = class_of(bytes);
    struct cell *cell = &cells[operation * CLASSES + class];
    struct ring_entry *entry;

    cell->calls++;
    cell->bytes += bytes;
    cell->ticks += took;
    if (end > begin && (took < cell->fastest || !cell->fastest))
        cell->fastest = took;
    cell->waiting += is_test ? took : took > cell->fastest ? took - cell->fastest : 0;
    cell->fastest += took > cell->fastest ? (took - cell->fastest) >> CREEP : 0;
    if (!several_threads || is_first_thread) {
        page->inside += took;
        if (is_test && tested && begin - page->last < short_pause)
            page->polling += begin - page->last;
        page->last = end;
        page->now = 0;
        tested = is_test;
    }
    if (!is_test) { /* how often those are made depends on others */
        entry = &ring[page->calls++ % RING];
        entry->signature = (operation << 4 | class) + ((uint32_t)(with + 1) << 12) * 0x9e3779b1U;
        entry->time = (uint32_t)(end >> TIME_SHIFT);
    }
    if (end - page->seen > page->ticks_per_second)
        look_at_clock(end);
    inside_mpi = false;
    return took;
}

static void use(const struct communicator *comm, int64_t bytes, uint64_t took)
{
    struct communicator_use *one = &uses[comm ? comm->place : COMMUNICATORS - 1];

    one->size = comm ? (uint64_t)comm->size : 0;
    one->calls++;
    one->bytes += (uint64_t)bytes;
    one->ticks += took;
}

static struct peer *peer_of(int world)
{
    return &peers[world < 0 || (uint32_t)world >= page->size ? page->size : (uint32_t)world];
}

static void sent(int world, int64_t bytes)
{
    struct peer *peer = peer_of(world);

    peer->messages++;
    peer->bytes += (uint64_t)bytes;
}

void record_time(unsigned operation, uint64_t begin)
{
    take_lock();
    count(operation, begin, 0, NOBODY, false);
    release_lock();
}

void record_test(unsigned operation, uint64_t begin)
{
    take_lock();
    count(operation, begin, 0, NOBODY, true);
    release_lock();
}

void record_put(unsigned operation, uint64_t begin, int64_t elements, word type)
{
    int64_t bytes = bytes_of(elements, type);

    take_lock();
    count(operation, begin, (uint64_t)bytes, NOBODY, false);
    release_lock();
}

void record_send(unsigned operation, uint64_t begin, int64_t elements, word type, int peer, word handle)
{
    int64_t bytes = bytes_of(elements, type);
    struct communicator *comm;
    int world;

    take_lock();
    comm = communicator_of(handle);
    world = world_rank(comm, peer);
    if (peer >= 0)
        sent(world, bytes);
    use(comm, bytes, count(operation, begin, (uint64_t)bytes, world, false));
    release_lock();
}

void record_receive(unsigned operation, uint64_t begin, int64_t elements, word type, int peer, word handle,
                    bool blocking)
{
    int64_t bytes = bytes_of(elements, type);
    struct communicator *comm;
    struct peer *from;
    uint64_t took;
    int world;

    take_lock();
    comm = communicator_of(handle);
    world = world_rank(comm, peer);
    took = count(operation, begin, (uint64_t)bytes, world, false);
    if (blocking && peer >= 0) {
        from = peer_of(world);
        from->receives++;
        from->ticks += took;
    }
    use(comm, 0, took);
    release_lock();
}

void record_exchange(unsigned operation, uint64_t begin, int64_t elements, word type, int to, int from, word handle)
{
    int64_t bytes = bytes_of(elements, type);
    struct communicator *comm;
    struct peer *peer;
    uint64_t took;
    int world;

    take_lock();
    comm = communicator_of(handle);
    world = world_rank(comm, to);
    if (to >= 0)
        sent(world, bytes);
    took = count(operation, begin, (uint64_t)bytes, world, false);
    if (from >= 0) {
        peer = peer_of(world_rank(comm, from));
        peer->receives++;
        peer->ticks += took;
    }
    use(comm, bytes, took);
    release_lock();
}

void record_collective(unsigned operation, uint64_t begin, int64_t elements, word type, bool each, int root,
                       word handle)
{
    struct communicator *comm;
    int64_t bytes;

    take_lock();
    comm = communicator_of(handle);
    bytes = comm && !comm->inter ? bytes_of(elements, type) * (each ? comm->size : 1) : 0; /* root's may be void */
    use(comm, bytes, count(operation, begin, (uint64_t)bytes, world_rank(comm, root), false));
    release_lock();
}

void record_sum(unsigned operation, uint64_t begin, word counts, word type, word handle)
{
    struct communicator *comm;
    int64_t elements = 0, bytes;

    take_lock();
    comm = communicator_of(handle);
    for (int i = 0; comm && !comm->inter && i < comm->size; i++)
        elements += ((const int *)counts)[i];
    bytes = bytes_of(elements, type);
    use(comm, bytes, count(operation, begin, (uint64_t)bytes, NOBODY, false));
    release_lock();
}

void remember_request(word request, int64_t elements, word type, int peer, word handle)
{
    struct communicator *comm;

    take_lock();
    comm = communicator_of(handle);
    if (comm && peer >= 0)
        keep_request((struct request){
            .handle = request,
            .bytes = bytes_of(elements, type),
            .peer = world_rank(comm, peer),
            .place = comm->place,
        });
    release_lock();
}

void forget_request(word request)
{
    take_lock();
    drop_request(request);
    release_lock();
}

/* The bytes of a request that was started; `peer` gets whom they are for. */
static int64_t started(word handle, int *peer)
{
    const struct request *request = request_of(handle);

    if (!request)
        return 0;
    *peer = request->peer;
    sent(request->peer, request->bytes);
    uses[request->place].calls++;
    uses[request->place].bytes += (uint64_t)request->bytes;
    return request->bytes;
}

void record_start(unsigned operation, uint64_t begin, word request)
{
    int peer = NOBODY;
    int64_t bytes;

    take_lock();
    bytes = started(request, &peer);
    count(operation, begin, (uint64_t)bytes, peer, false);
    release_lock();
}

void record_starts(unsigned operation, uint64_t begin, int number, word requests, bool fortran)
{
    size_t size = fortran || mpi.short_handles ? sizeof(int) : sizeof(word);
    int64_t bytes = 0;
    int peer = NOBODY;

    take_lock();
    for (int i = 0; i < number; i++) {
        word at = requests + (size_t)i * size;

        bytes += started(fortran ? fortran_handle(at) : handle_at(at), &peer);
    }
    count(operation, begin, (uint64_t)bytes, peer, false);
    release_lock();
}

void forget_comm(word comm)
{
    take_lock();
    forget_communicator(comm);
    release_lock();
}

void forget_types(void)
{
    forget_sizes();
}

static bool has_steady_counter(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1 << 8;
#else
    return false;
#endif
}

/* Where each part of the page is, and how long it is with all of them. */
static void lay_out(struct page *new)
{
    new->operations = operations;
    new->classes = CLASSES;
    new->ring = RING;
    new->communicators = COMMUNICATORS;
    new->names_at = sizeof *new;
    new->cells_at = (new->names_at + (uint64_t)NAME_BYTES * operations + LINE - 1) / LINE * LINE;
    new->ring_at = new->cells_at + sizeof *cells * operations * CLASSES;
    new->communicators_at = new->ring_at + sizeof *ring * RING;
    new->peers_at = new->communicators_at + sizeof *uses * COMMUNICATORS;
    new->bytes = new->peers_at + sizeof *peers * (new->size + 1);
}

static struct page *new_page(void)
{
    struct page plan = {.magic = PAGE_MAGIC, .version = PAGE_VERSION}, *new;

    if (mpi.comm_rank(mpi.world, (word)&plan.rank) || mpi.comm_size(mpi.world, (word)&plan.size))
        return NULL;
    lay_out(&plan);
    new = mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (new == MAP_FAILED)
        return NULL;
    *new = plan;
    for (unsigned i = 0; i < operations; i++)
        strncpy((char *)new + new->names_at + i * NAME_BYTES, operation_names[i], NAME_BYTES - 1);
    cells = (struct cell *)((char *)new + new->cells_at);
    ring = (struct ring_entry *)((char *)new + new->ring_at);
    uses = (struct communicator_use *)((char *)new + new->communicators_at);
    peers = (struct peer *)((char *)new + new->peers_at);
    uses->size = new->size;
    return new;
}

/* The counter and the clock at one moment: of some looks the shortest, as this thread may lose its processor in one. */
static uint64_t look_at_both(uint64_t *clock)
{
    uint64_t counter = 0, shortest = UINT64_MAX;

    for (int i = 0; i < 4; i++) {
        uint64_t begin = nanoseconds(CLOCK_MONOTONIC), here = ticks(), took = nanoseconds(CLOCK_MONOTONIC) - begin;

        if (took < shortest) {
            shortest = took;
            counter = here;
            *clock = begin;
        }
    }
    return counter;
}

/* A first guess of the counter's rate, from some microseconds; the next look is a second of that later. */
static uint64_t guess_rate(void)
{
    uint64_t begin, end, time = look_at_both(&begin);

    while (nanoseconds(CLOCK_MONOTONIC) - begin < SECOND / 5000)
        ;
    time = look_at_both(&end) - time;
    return (uint64_t)((double)time / (double)(end - begin) * SECOND);
}

void library_begins(void)
{
    struct page *new;
    int threads = 0;

    if (page || !library_find())
        return;
    new = new_page();
    mpi.query_thread((word)&threads);
    several_threads = threads == THREADS_MULTIPLE;
    levels_begin(new && !several_threads);
    if (!new)
        return;
    new->flags = (several_threads ? MULTIPLE : 0) | (is_spawned() ? SPAWNED : 0);
    is_first_thread = true;
    counter_is_steady = has_steady_counter();
    new->ticks_per_second = guess_rate();
    short_pause = new->ticks_per_second / (SECOND / SHORT_PAUSE);
    new->begun = new->last = new->seen = ticks();
    new->seen_wall = nanoseconds(CLOCK_REALTIME);
    page = new;
    wherry_mpi_anchor.process = (uint64_t)getpid();
    wherry_mpi_anchor.bytes = new->bytes;
    __atomic_store_n(&wherry_mpi_anchor.address, (uint64_t)(uintptr_t)new, __ATOMIC_RELEASE);
    shared_begin(!several_threads, (int)new->rank, (int)new->size);
}

void library_ends(void)
{
    struct page *ending = page;

    if (!ending)
        return;
    shared_end();
    page = NULL; /* calls in MPI_Finalize and after it are not counted; the page may still be read */
    ending->ended = ticks();
}
