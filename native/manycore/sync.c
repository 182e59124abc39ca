/* The syncs; see endpoint.h. */
#include <errno.h>

#include "window.h"

static bool is_running(struct window *window, uint32_t process)
{
    return process != CONSOLE_PROCESS && window_place(window, process).state == PLACE_RUNNING;
}

int sync_signal(struct window *window, uint32_t from, uint32_t sync, uint32_t processes)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (processes >> process & 1 && !is_running(window, process))
            return -ESRCH;
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        struct endpoint *endpoint = &window->endpoints[process];

        if (!(processes >> process & 1))
            continue;
        endpoint_lock(endpoint);
        endpoint->signals[sync][from]++;
        endpoint_unlock(endpoint);
        atomic_fetch_add(&window->said[from][process], 1);
    }
    window_ring_processes(window, processes);
    return 0;
}

int sync_take(struct window *window, uint32_t process, uint32_t sync, uint32_t processes)
{
    struct endpoint *endpoint = &window->endpoints[process];
    uint32_t missing = 0, gone = 0;

    for (uint32_t from = 0; from < PROCESS_MAX; from++) /* before the lock: who signals and ends is not missed */
        if (processes >> from & 1 && !is_running(window, from))
            gone |= 1u << from;
    endpoint_lock(endpoint);
    for (uint32_t from = 0; from < PROCESS_MAX; from++)
        if (processes >> from & 1 && !endpoint->signals[sync][from])
            missing |= 1u << from;
    for (uint32_t from = 0; !missing && from < PROCESS_MAX; from++)
        if (processes >> from & 1)
            endpoint->signals[sync][from]--;
    endpoint_unlock(endpoint);
    return !missing ? 1 : missing & gone ? -ESRCH : 0;
}
