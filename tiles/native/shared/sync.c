/* The syncs; see endpoint.h. */
#include <errno.h>

#include "mesh.h"

static bool is_running(struct shared_memory *shared, uint32_t process)
{
    return process != CONSOLE_PROCESS && shared_place(shared, process).state == PLACE_RUNNING;
}

int sync_signal(struct shared_memory *shared, uint32_t from, uint32_t sync, uint32_t processes)
{
    for (uint32_t process = 0; process < PROCESS_MAX; process++)
        if (processes >> process & 1 && !is_running(shared, process))
            return -ESRCH;
    for (uint32_t process = 0; process < PROCESS_MAX; process++) {
        struct endpoint *endpoint = &shared->endpoints[process];

        if (!(processes >> process & 1))
            continue;
        endpoint_lock(endpoint);
        endpoint->signals[sync][from]++;
        endpoint->signal_due[sync][from] = mesh_due(shared, from, process);
        endpoint_unlock(endpoint);
        atomic_fetch_add(&shared->said[from][process], 1);
    }
    shared_ring_processes(shared, processes);
    return 0;
}

int sync_take(struct shared_memory *shared, uint32_t process, uint32_t sync, uint32_t processes)
{
    struct endpoint *endpoint = &shared->endpoints[process];
    uint32_t missing = 0, gone = 0, coming = 0;
    int64_t due;

    for (uint32_t from = 0; from < PROCESS_MAX; from++) /* before the lock: a signal of a process that then ends is not missed */
        if (processes >> from & 1 && !is_running(shared, from))
            gone |= 1u << from;
    endpoint_lock(endpoint);
    due = endpoint->due;
    for (uint32_t from = 0; from < PROCESS_MAX; from++)
        if (processes >> from & 1 && !endpoint->signals[sync][from])
            missing |= 1u << from;
        else if (processes >> from & 1 && !endpoint_has_come(endpoint, endpoint->signal_due[sync][from]))
            coming |= 1u << from;
    for (uint32_t from = 0; !missing && !coming && from < PROCESS_MAX; from++)
        if (processes >> from & 1)
            endpoint->signals[sync][from]--;
    due -= endpoint->due;
    endpoint_unlock(endpoint);
    if (due) /* its master must not sleep longer */
        shared_ring_process(shared, process);
    return missing & gone ? -ESRCH : !missing && !coming;
}
