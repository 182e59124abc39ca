/* See tile.h. Freestanding; every kernel call goes through kernel_call() in start.S. */
#include "tile.h"

void thread_begin(void); /* start.S */

int thread_self(void)
{
    return (int)kernel_call(CALL_SELF);
}

int thread_create(long (*function)(void *), void *argument)
{
    return (int)kernel_call(CALL_CREATE, thread_begin, function, argument);
}

int thread_join(int thread, long *value)
{
    return (int)kernel_call(CALL_JOIN, (long)thread, value);
}

int thread_affinity(unsigned cores)
{
    return (int)kernel_call(CALL_AFFINITY, (long)cores);
}

void threads_freeze(void)
{
    kernel_call(CALL_FREEZE);
}

int threads_unfreeze(void)
{
    return (int)kernel_call(CALL_UNFREEZE);
}

void thread_yield(void)
{
    kernel_call(CALL_YIELD);
}

void thread_exit(long value)
{
    for (;;)
        kernel_call(CALL_THREAD_EXIT, value);
}

void process_exit(int status)
{
    for (;;)
        kernel_call(CALL_EXIT, (long)status);
}

static void word_wait(int *word, int value)
{
    kernel_call(CALL_WORD_WAIT, word, (long)value);
}

static void word_wake(int *word, int count)
{
    kernel_call(CALL_WORD_WAKE, word, (long)count);
}

/* Drepper, "Futexes are tricky", mutex 3. */
void mutex_lock(struct mutex *mutex)
{
    int seen = 0;

    if (__atomic_compare_exchange_n(&mutex->word, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    if (seen != 2)
        seen = __atomic_exchange_n(&mutex->word, 2, __ATOMIC_ACQUIRE);
    while (seen) {
        word_wait(&mutex->word, 2);
        seen = __atomic_exchange_n(&mutex->word, 2, __ATOMIC_ACQUIRE);
    }
}

void mutex_unlock(struct mutex *mutex)
{
    if (__atomic_exchange_n(&mutex->word, 0, __ATOMIC_RELEASE) == 2)
        word_wake(&mutex->word, 1);
}

void condition_wait(struct condition *condition, struct mutex *mutex)
{
    int seen = __atomic_load_n(&condition->word, __ATOMIC_RELAXED);

    mutex_unlock(mutex);
    word_wait(&condition->word, seen);
    mutex_lock(mutex);
}

void condition_signal(struct condition *condition)
{
    __atomic_fetch_add(&condition->word, 1, __ATOMIC_RELAXED);
    word_wake(&condition->word, 1);
}

void condition_broadcast(struct condition *condition)
{
    __atomic_fetch_add(&condition->word, 1, __ATOMIC_RELAXED);
    word_wake(&condition->word, THREAD_MAX);
}

void barrier_wait(struct barrier *barrier)
{
    int turn = __atomic_load_n(&barrier->turn, __ATOMIC_ACQUIRE);

    if (__atomic_sub_fetch(&barrier->left, 1, __ATOMIC_ACQ_REL) == 0) {
        __atomic_store_n(&barrier->left, barrier->count, __ATOMIC_RELAXED);
        __atomic_fetch_add(&barrier->turn, 1, __ATOMIC_RELEASE);
        word_wake(&barrier->turn, THREAD_MAX);
        return;
    }
    while (__atomic_load_n(&barrier->turn, __ATOMIC_ACQUIRE) == turn)
        word_wait(&barrier->turn, turn);
}

int kmigrate_to(int tile)
{
    return move_to(tile, MODE_FAITHFUL);
}

int move_to(int tile, int mode)
{
    return (int)kernel_call(CALL_MOVE, (long)tile, (long)mode);
}

void *grow(int pages)
{
    long at = kernel_call(CALL_GROW, (long)pages);

    return at < 0 ? NULL : (void *)at;
}

int64_t clock_ns(void)
{
    return kernel_call(CALL_CLOCK);
}

int info(int what)
{
    return (int)kernel_call(CALL_INFO, (long)what, 0l);
}

int info_member(int rank)
{
    return (int)kernel_call(CALL_INFO, (long)INFO_MEMBER, (long)rank);
}

void *memcpy(void *to, const void *from, size_t count)
{
    char *at = to;

    for (const char *byte = from; count--; )
        *at++ = *byte++;
    return to;
}

void *memset(void *to, int byte, size_t count)
{
    for (char *at = to; count--; )
        *at++ = (char)byte;
    return to;
}

int memcmp(const void *left, const void *right, size_t count)
{
    const unsigned char *a = left, *b = right;

    for (; count--; a++, b++)
        if (*a != *b)
            return *a - *b;
    return 0;
}

size_t strlen(const char *text)
{
    size_t count = 0;

    while (text[count])
        count++;
    return count;
}
