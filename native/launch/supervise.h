/* Starts the launcher program of a job and stays with it until its end. */
#ifndef WHERRY_LAUNCH_SUPERVISE_H
#define WHERRY_LAUNCH_SUPERVISE_H

#include <stdbool.h>

#include "job_files.h"
#include "job_input.h"
#include "wherry/wire.h"

struct program {
    uid_t uid;
    gid_t gid;
    gid_t groups[WIRE_GROUPS_MAX];
    int group_count;
    const char *cwd;
    bool has_input; /* else its standard input is /dev/null */
    const char *sandbox; /* file with the first process of the sandbox that `argv` makes and leaves; NULL: there is none */
    char **argv;
    pid_t pid;
    struct job_input input;
    int output[2]; /* our ends of its standard output and error */
};

/* Starts the program; when that fails, writes "failed REASON" to `report` and exits with 1. */
void supervise_start(struct program *program, const struct job_files *files, int report);
/* Keeps output, passes signals on, writes the exit file. Returns 0 or negative errno. */
int supervise_until_end(struct program *program, struct job_files *files);

#endif
