/*
 * The job file: the facts of the job that wherry-rsh needs, written by the daemon, mode 0600, named by WHERRY_JOB.
 * Entries in any order, each ended by a NUL, as variables and names of directories may have line breaks:
 *
 *   user UID GID [GROUPS]        groups comma-separated
 *   cwd DIR
 *   inherited TEXT               wherry/inherited.h; may be left out
 *   node NAME ADDRESS PORT KEY   once per node; its key, 64 hex digits
 *   env NAME=VALUE               once per variable
 */
#ifndef WHERRY_RSH_JOBFILE_H
#define WHERRY_RSH_JOBFILE_H

#include <stddef.h>

struct job_node {
    const char *name, *address, *port, *key;
};

/* All strings point into `text`. */
struct jobfile {
    char *text;
    const char *uid, *gid, *groups, *cwd, *inherited;
    struct job_node *nodes;
    size_t node_count;
    const char **environment;
    size_t environment_count;
};

/* Takes a text apart, which is changed and then belongs to `job`; a NUL follows its `length`. As jobfile_read(). */
int jobfile_parse(char *text, size_t length, struct jobfile *job, int *entry);
/* Reads the file. Returns 0, or negative errno with *entry the number of the entry at fault (0: the whole file). */
int jobfile_read(const char *path, struct jobfile *job, int *entry);
void jobfile_free(struct jobfile *job);
/* The node of that name or address, or NULL. */
const struct job_node *jobfile_find_node(const struct jobfile *job, const char *host);

#endif
