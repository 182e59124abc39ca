/* Launchers that wait in poll(): mpirun and orted of Open MPI 4. See output.c. */
#include "output.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 4096 /* descriptors of a call that is looked at */ };

typedef bool is_held(int fd);

/* Has the held ones not be readable, but for `most` of them. The number of descriptors without an event then. */
static int hold_back(struct pollfd *set, nfds_t count, is_held *held, unsigned most)
{
    static _Thread_local nfds_t turn; /* the place of the descriptor let through last */
    nfds_t begin = turn;
    int emptied = 0;

    for (nfds_t i = 1; i <= count; i++) {
        struct pollfd *one = set + (begin + i) % count;

        if (!(one->revents & POLLIN) || !held(one->fd))
            continue;
        if (most) {
            most--;
            turn = (begin + i) % count;
            continue;
        }
        one->revents &= (short)~POLLIN;
        emptied += !one->revents;
    }
    return emptied;
}

/* Waits without the held ones, and for `ways`, of which the caller gets no event. */
static int poll_others(struct pollfd *set, nfds_t count, is_held *held, const struct pollfd ways[2],
                       struct timespec *left)
{
    struct pollfd copy[MOST + 2];
    int found, told = 0;

    memcpy(copy, set, count * sizeof *set);
    memcpy(copy + count, ways, 2 * sizeof *ways);
    for (nfds_t i = 0; i < count; i++)
        if (copy[i].events & POLLIN && held(copy[i].fd))
            copy[i].events &= (short)~POLLIN;
    found = kernel_poll(copy, count + 2, left);
    for (nfds_t i = 0; i < count && found >= 0; i++) {
        set[i].revents = copy[i].revents;
        told += set[i].revents != 0;
    }
    return found < 0 ? found : told;
}

/* The connection that has a queue, or NULL. */
static const struct pollfd *queued(const struct pollfd *set, nfds_t count)
{
    for (nfds_t i = 0; i < count; i++)
        if (set[i].events & POLLOUT && takes_output(set[i].fd))
            return set + i;
    return NULL;
}

static int poll_of_daemon(struct pollfd *set, nfds_t count, int timeout, struct timespec *left)
{
    static const struct pollfd none[2] = {{.fd = -1}, {.fd = -1}};
    const struct pollfd *way = queued(set, count);
    struct timespec now = {0};
    int found;

    if (!way)
        return kernel_poll(set, count, left);
    found = kernel_poll(set, count, &now);
    if (found > (way->revents ? 2 : 0)) /* the way itself and one, which may be reported whatever it is */
        found -= hold_back(set, count, brings_output, way->revents ? 1 : 0);
    if (found || timeout == 0)
        return found;
    return poll_others(set, count, is_known_to_bring_output, none, left);
}

static bool has_input(const struct pollfd *set, nfds_t count)
{
    for (nfds_t i = 0; i < count; i++)
        if (set[i].revents & POLLIN)
            return true;
    return false;
}

static int poll_of_launcher(struct pollfd *set, nfds_t count, int timeout, struct timespec *left)
{
    struct pollfd ways[2] = {{.fd = STDOUT_FILENO, .events = POLLOUT}, {.fd = STDERR_FILENO, .events = POLLOUT}};
    struct timespec now = {0};
    int found = kernel_poll(set, count, left);

    if (found <= 0 || !has_input(set, count) || kernel_poll(ways, 2, &now) == 2)
        return found;
    found -= hold_back(set, count, feeds_launcher, 0);
    if (found || timeout == 0)
        return found;
    for (int i = 0; i < 2; i++)
        if (ways[i].revents)
            ways[i].fd = -1;
    return poll_others(set, count, feeds_launcher, ways, left);
}

int poll(struct pollfd *set, nfds_t count, int timeout)
{
    struct timespec time = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};
    struct timespec *left = timeout < 0 ? NULL : &time;

    if (!is_launcher || count > MOST || is_ending())
        return kernel_poll(set, count, left);
    return is_daemon ? poll_of_daemon(set, count, timeout, left) : poll_of_launcher(set, count, timeout, left);
}
