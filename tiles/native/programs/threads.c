/* threads ROUNDS: threads, mutex, condition variable and barrier work as declared; the exit code is 0 only then. */
#include "tile.h"

#define WORKERS 17

static struct mutex mutex = MUTEX_INIT;
static struct condition changed = CONDITION_INIT;
static struct barrier barrier = BARRIER_INIT(WORKERS);
static long rounds, counter, turn;
static volatile int phase[WORKERS];

static void require(int condition, const char *what)
{
    if (condition)
        return;
    say("failed: %s\n", what);
    process_exit(1);
}

/* Everybody adds under the mutex, then all must have seen the same phase at the barrier. */
static long add(void *argument)
{
    int self = (int)(long)argument;

    for (long i = 0; i < rounds; i++) {
        mutex_lock(&mutex);
        counter++;
        mutex_unlock(&mutex);
        phase[self] = (int)i;
        barrier_wait(&barrier);
        for (int other = 0; other < WORKERS; other++)
            require(phase[other] == (int)i, "barrier");
        barrier_wait(&barrier);
        if (i % 7 == self % 7)
            thread_yield();
    }
    return self * 3;
}

/* One after the other, in the order of their numbers. */
static long take_turn(void *argument)
{
    mutex_lock(&mutex);
    while (turn != (long)argument)
        condition_wait(&changed, &mutex);
    turn++;
    condition_broadcast(&changed);
    mutex_unlock(&mutex);
    return turn;
}

static void run_all(long (*function)(void *), int expect_triple)
{
    int threads[WORKERS];
    long value;

    mutex_lock(&mutex); /* nobody ends before all are there */
    for (int i = 0; i < WORKERS; i++) {
        threads[i] = thread_create(function, (void *)(long)i);
        require(threads[i] > 0, "create");
    }
    if (expect_triple)
        require(thread_create(function, NULL) == -11, "a nineteenth thread is refused with EAGAIN");
    mutex_unlock(&mutex);
    for (int i = 0; i < WORKERS; i++) {
        require(thread_join(threads[i], &value) == 0, "join");
        require(!expect_triple || value == i * 3, "value of a thread");
    }
    require(thread_join(threads[0], &value) == -3, "a thread is joined once");
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? number_of(argv[1]) : 20;
    run_all(add, 1);
    require(counter == rounds * WORKERS, "mutex");
    run_all(take_turn, 0);
    require(turn == WORKERS, "condition variable");
    require(thread_join(thread_self(), NULL) == -35, "joining oneself is refused");
    for (int turn = 0; turn < 20; turn++) /* every other core is asleep, and has to be woken for it */
        for (int core = 1; core < info(INFO_CORES); core++)
            require(thread_affinity(1u << core) == 0 && info(INFO_CORE) == core, "affinity");
    require(thread_affinity(1) == -22, "no thread runs on the master core");
    require(kernel_call(99) == -38, "an unknown call is refused");
    say("ok %ld\n", counter);
    return 0;
}
