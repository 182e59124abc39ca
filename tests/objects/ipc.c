/* Pipes, FIFOs, queues and shared memory, with their contents. */
#include "objects.h"

#include <mqueue.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

static int ends[2], id, more;
static char text[64];

static const char *make_pipe(void)
{
    NEED(!pipe2(ends, O_CLOEXEC) && write(ends[1], "hello", 5) == 5);
    return OK;
}
static const char *check_pipe(void)
{
    NEED(read(ends[0], text, sizeof text) == 5 && !memcmp(text, "hello", 5));
    return OK;
}

static const char *make_pipe_full(void)
{
    static char block[4096];

    NEED(!pipe2(ends, O_NONBLOCK) && fcntl(ends[0], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
    while (write(ends[1], memset(block, 'a' + more % 26, sizeof block), sizeof block) == sizeof block)
        more++;
    NEED(more == 64);
    return OK;
}
static const char *check_pipe_full(void)
{
    static char block[4096];

    NEED(fcntl(ends[0], F_GETPIPE_SZ) == 1 << 18);
    NEED(write(ends[1], block, 1) == -1 && errno == EAGAIN);
    for (int i = 0; i < more; i++)
        NEED(read(ends[0], block, sizeof block) == sizeof block && block[7] == 'a' + i % 26);
    NEED(read(ends[0], block, 1) == -1 && errno == EAGAIN);
    return OK;
}

static const char *make_pipe_packets(void)
{
    NEED(!pipe2(ends, O_DIRECT) && write(ends[1], "one", 3) == 3 && write(ends[1], "second", 6) == 6);
    return OK;
}
static const char *check_pipe_packets(void)
{
    NEED(fcntl(ends[1], F_GETFL) & O_DIRECT);
    NEED(read(ends[0], text, sizeof text) == 3);
    NEED(read(ends[0], text, sizeof text) == 6);
    return OK;
}

static const char *make_fifo(void)
{
    NEED(!mkfifo("/tmp/a-fifo", 0600) && (id = open("/tmp/a-fifo", O_RDWR)) >= 0 && write(id, "fifo", 4) == 4);
    return OK;
}
static const char *check_fifo(void)
{
    NEED(read(id, text, sizeof text) == 4 && !memcmp(text, "fifo", 4));
    return OK;
}

static const char *make_eventfd(void) { NEED((id = eventfd(7, EFD_NONBLOCK)) >= 0); return OK; }
static const char *check_eventfd(void)
{
    uint64_t value;

    NEED(read(id, &value, 8) == 8 && value == 7);
    NEED(read(id, &value, 8) == -1 && errno == EAGAIN);
    return OK;
}
static const char *make_eventfd_semaphore(void) { NEED((id = eventfd(3, EFD_SEMAPHORE)) >= 0); return OK; }
static const char *check_eventfd_semaphore(void)
{
    uint64_t value;

    NEED(read(id, &value, 8) == 8 && value == 1);
    return OK;
}

static int *memory;
static const char *make_shm(void)
{
    id = shmget(IPC_PRIVATE, 1 << 16, IPC_CREAT | 0600);
    NEED(id >= 0 && (memory = shmat(id, NULL, 0)) != (void *)-1);
    memory[1000] = 4711;
    return OK;
}
static const char *check_shm(void)
{
    int *again = shmat(id, NULL, 0);

    NEED(memory[1000] == 4711 && again != (void *)-1 && again[1000] == 4711);
    memory[1001] = 5;
    NEED(again[1001] == 5);
    return OK;
}
static const char *make_shm_removed(void)
{
    NEED(!*make_shm() && !shmctl(id, IPC_RMID, NULL));
    return OK;
}
static const char *check_shm_removed(void)
{
    NEED(memory[1000] == 4711);
    memory[1001] = 5;
    return OK;
}
static const char *make_shm_unattached(void)
{
    NEED(!*make_shm() && !shmdt(memory));
    return OK;
}
static const char *check_shm_unattached(void)
{
    NEED((memory = shmat(id, NULL, 0)) != (void *)-1 && memory[1000] == 4711);
    return OK;
}

static const char *make_sem(void)
{
    id = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
    NEED(id >= 0 && !semctl(id, 1, SETVAL, 9));
    return OK;
}
static const char *check_sem(void) { NEED(semctl(id, 1, GETVAL) == 9); return OK; }

static struct { long type; char body[8]; } message = {3, "message"};
static const char *make_msg(void)
{
    id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    NEED(id >= 0 && !msgsnd(id, &message, 8, 0));
    return OK;
}
static const char *check_msg(void)
{
    memset(&message, 0, sizeof message);
    NEED(msgrcv(id, &message, 8, 3, IPC_NOWAIT) == 8 && !strcmp(message.body, "message"));
    return OK;
}

static mqd_t queue;
static const char *make_mq(void)
{
    struct mq_attr attr = {.mq_maxmsg = 4, .mq_msgsize = 32};

    queue = mq_open("/a-queue", O_RDWR | O_CREAT, 0600, &attr);
    NEED(queue >= 0 && !mq_send(queue, "queued", 6, 5));
    return OK;
}
static const char *check_mq(void)
{
    unsigned priority;

    NEED(mq_receive(queue, text, 32, &priority) == 6 && priority == 5);
    return OK;
}

static const char *make_shm_posix(void)
{
    id = shm_open("/a-segment", O_RDWR | O_CREAT, 0600);
    NEED(id >= 0 && !ftruncate(id, 8192));
    memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, id, 0);
    NEED(memory != MAP_FAILED && !shm_unlink("/a-segment"));
    memory[1] = 33;
    return OK;
}
static const char *check_shm_posix(void)
{
    int other[2];

    NEED(pread(id, other, 8, 0) == 8 && other[1] == 33);
    memory[0] = 12;
    NEED(pread(id, other, 8, 0) == 8 && other[0] == 12);
    return OK;
}

#define CASE(name) {#name, make_##name, check_##name}
const struct object ipc[] = {
    CASE(pipe), CASE(pipe_full), CASE(pipe_packets), CASE(fifo), CASE(eventfd), CASE(eventfd_semaphore),
    CASE(shm), CASE(shm_removed),
    CASE(shm_unattached), CASE(sem), CASE(msg), CASE(mq), CASE(shm_posix), {0},
};
