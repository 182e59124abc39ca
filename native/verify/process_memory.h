/* The processes of a frozen node and their memory, whatever the protection of a mapping. */
#ifndef WHERRY_VERIFY_PROCESS_MEMORY_H
#define WHERRY_VERIFY_PROCESS_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A process as its own namespace counts and as we do. */
struct task {
    uint32_t inside;
    pid_t pid;
    int memory, pagemap; /* of /proc */
};

/* Learns them from a cgroup.procs; `flags` as open(2) takes them, of their memory. 0 or negative errno. */
int tasks_read(const char *path, int flags);
/* The process of that number inside. NULL: there is none. */
const struct task *tasks_find(uint32_t inside);

/* All of it, or a negative errno. */
int memory_read(const struct task *task, uint64_t address, void *bytes, size_t count);
int memory_write(const struct task *task, uint64_t address, const void *bytes, size_t count);

#endif
