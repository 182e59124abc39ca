/* Starts the launcher program of a job and stays with it until its end. */
#ifndef WHERRY_LAUNCH_HOLD_H
#define WHERRY_LAUNCH_HOLD_H

#include "record.h"
#include "wherry/wire.h"

struct program {
    uid_t uid;
    gid_t gid;
    gid_t groups[WIRE_GROUPS_MAX];
    int group_count;
    const char *cwd, *input; /* input NULL: /dev/null */
    char **argv;
    pid_t pid;
    int output[2]; /* our ends of its standard output and error */
};

/* Starts the program; when that fails, writes "failed REASON" to `report` and exits with 1. */
void hold_start(struct program *program, int report);
/* Keeps output, passes signals on, writes the exit file. Returns 0 or negative errno. */
int hold_until_end(struct program *program, struct record *record);

#endif
