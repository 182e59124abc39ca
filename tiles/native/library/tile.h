/*
 * The library of user programs. There is no libc: programs have only these functions.
 *
 * Threads, words and messages are the kernel's; mutex, condition variable and barrier use two calls, "wait while this
 * word has this value" and "wake threads that wait for this word", so their state lies in the program's own memory and
 * an uncontended one costs no kernel call. Errors are negative errno.
 */
#ifndef WHERRY_MANYCORE_LIBRARY_TILE_H
#define WHERRY_MANYCORE_LIBRARY_TILE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../abi/abi.h"

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
/*
 * Stops every other thread, wherever it is: when this returns none runs. The work of a frozen thread is not waited
 * for.
 */
void threads_freeze(void);
int threads_unfreeze(void);
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

/*
 * The same beside the program: an operation is started (its number, or negative errno: -11 when 32 are under way), and
 * waited or asked for. The bytes are the operation's until it is done. operation_wait and operation_test return the
 * count of bytes sent or received, or its error; operation_test -11 while it is under way. Either ends it.
 */
int start_mail_send(int process, int port, const void *bytes, size_t size);
int start_mail_receive(int port, void *bytes, size_t room);
int start_portal_send(int process, int port, int ticket, const void *bytes, size_t size);
int start_portal_receive(int port, void *bytes, size_t size);
long operation_wait(int operation, struct mail_from *from);
long operation_test(int operation, struct mail_from *from);
/* Waits for one of a set (bit N is operation N). Returns the done ones; they are still to be tested. */
unsigned operations_wait(unsigned operations);

/* Bulk: the receiver allows a process so many bytes under a ticket (0 to 2^24 - 1), then receives exactly those. */
int portal_allow(int port, int process, int ticket, size_t size);
long portal_send(int process, int port, int ticket, const void *bytes, size_t size);
long portal_receive(int port, void *bytes, size_t size);

/* A signal to each process of a set (bit N is process N); a wait for one of each. */
int sync_signal(int sync, unsigned processes);
int sync_wait(int sync, unsigned processes);

/*
 * Names of at most 63 bytes, known to every process of these tiles. A name is its owner's until that unlinks or ends.
 */
int name_link(const char *name, int port);
int name_unlink(const char *name);
/* Returns the process that owns the name; -2 when nobody does, or waits for that when `wait` is set. */
int name_find(const char *name, int *port, bool wait);

/* Of a program that was started as several ranks: the process of a rank, -11 while it is being started. */
int info_member(int rank);
/* Ends every rank. */
void abort_ranks(int status) __attribute__((noreturn));

/* The tile process has moved when this returns 0: to that tile, or to another if someone else moved it just then. */
int move_to(int tile, int mode);
/* The paper's call, with the paper's way of moving: move_to(tile, MODE_FAITHFUL). */
int kmigrate_to(int tile);
void *grow(int pages);
int64_t clock_ns(void);
int info(int what);

/* Console: text appears once, in order, wherever the process is. %d %u %x %c %s %f, width, precision, l. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int say_words(const char *format, va_list *words);
long number_of(const char *text);

void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int byte, size_t count);
int memcmp(const void *left, const void *right, size_t count);
size_t strlen(const char *text);

#endif
