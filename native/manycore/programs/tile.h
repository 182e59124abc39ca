/*
 * The library of user programs. There is no libc: what is here is all there is.
 *
 * Threads, words and messages are the kernel's; mutex, condition variable and barrier stand on two calls, "wait while
 * this word has this value" and "wake who waits for this word", so their state lies in the program's own memory and an
 * uncontended one costs no kernel call. Errors are negative errno.
 */
#ifndef WHERRY_TILE_H
#define WHERRY_TILE_H

#include <stddef.h>
#include <stdint.h>

#include "../abi.h"

struct mutex { int word; };                 /* 0 free, 1 taken, 2 taken and somebody waits */
struct condition { int word; };             /* counts signals */
struct barrier { int left, count, turn; };  /* left: still to come in this turn */

#define MUTEX_INIT {0}
#define CONDITION_INIT {0}
#define BARRIER_INIT(threads) {(threads), (threads), 0}

long kernel_call(long number, ...);

int thread_self(void);
int thread_create(long (*function)(void *), void *argument);
int thread_join(int thread, long *value);
int thread_affinity(unsigned cores);
void thread_yield(void);
void thread_exit(long value) __attribute__((noreturn));
void process_exit(int status) __attribute__((noreturn));

void mutex_lock(struct mutex *mutex);
void mutex_unlock(struct mutex *mutex);
void condition_wait(struct condition *condition, struct mutex *mutex);
void condition_signal(struct condition *condition);
void condition_broadcast(struct condition *condition);
void barrier_wait(struct barrier *barrier);

/* Waits while the port at the other end is full. Returns `size` or negative errno. */
int mail_send(int process, int port, const void *bytes, size_t size);
/* Waits for a message. Returns its size, at most MAIL_SIZE; `from` may be NULL. */
int mail_receive(int port, void *bytes, size_t room, struct mail_from *from);

/* The tile process goes on at another tile when this returns 0. */
int move_to(int tile, int mode);
void *grow(int pages);
int64_t clock_ns(void);
int info(int what);

/* Console: what is said appears once, in order, wherever the process is. %d %u %x (long), %s, %% and nothing else. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
long number_of(const char *text);

void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int byte, size_t count);
int memcmp(const void *left, const void *right, size_t count);
size_t strlen(const char *text);

#endif
