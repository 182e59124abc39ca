/* Reader of the job file (see jobfile.h). An unknown word is an error: a daemon of another version wrote it. */
#include "jobfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wherry/wire.h"

static int read_text(const char *path, char **text, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    size_t count = 0;
    ssize_t got = 1;

    if (fd < 0 || fstat(fd, &about) < 0)
        return -errno;
    *text = malloc((size_t)about.st_size + 1);
    while (*text && got > 0 && count < (size_t)about.st_size) {
        got = read(fd, *text + count, (size_t)about.st_size - count);
        count += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    if (!*text)
        return -ENOMEM;
    (*text)[count] = 0;
    *length = count;
    return got < 0 ? -EIO : 0;
}

/* Cuts `line` at blanks into at most `room` words. */
static size_t split_words(char *line, char **words, size_t room)
{
    size_t count = 0;
    char *rest = line, *word;

    while (count < room && (word = strsep(&rest, " ")))
        if (*word)
            words[count++] = word;
    return count;
}

static int take_node(struct jobfile *job, char *value)
{
    char *words[4];
    void *nodes;

    if (split_words(value, words, 4) != 4)
        return -EINVAL;
    if (wire_check_key(words[3], strlen(words[3])) < 0)
        return -EPROTO;
    nodes = realloc(job->nodes, (job->node_count + 1) * sizeof *job->nodes);
    if (!nodes)
        return -ENOMEM;
    job->nodes = nodes;
    job->nodes[job->node_count++] = (struct job_node){words[0], words[1], words[2], words[3]};
    return 0;
}

static int take_environment(struct jobfile *job, const char *value)
{
    void *environment = realloc(job->environment, (job->environment_count + 1) * sizeof *job->environment);

    if (!environment)
        return -ENOMEM;
    job->environment = environment;
    job->environment[job->environment_count++] = value;
    return *value != '=' && strchr(value, '=') ? 0 : -EINVAL;
}

static int take_entry(struct jobfile *job, char *entry)
{
    char *value = strchr(entry, ' ');

    if (!value)
        return -EINVAL;
    *value++ = 0;
    if (strcmp(entry, "user") == 0) {
        char *words[3] = {NULL, NULL, ""};
        size_t count = split_words(value, words, 3);

        job->uid = words[0];
        job->gid = words[1];
        job->groups = words[2];
        return count >= 2 ? 0 : -EINVAL;
    }
    if (strcmp(entry, "cwd") == 0) {
        job->cwd = value;
        return 0;
    }
    if (strcmp(entry, "inherited") == 0) {
        job->inherited = value;
        return 0;
    }
    if (strcmp(entry, "node") == 0)
        return take_node(job, value);
    if (strcmp(entry, "env") == 0)
        return take_environment(job, value);
    return -EINVAL;
}

int jobfile_parse(char *text, size_t length, struct jobfile *job, int *entry)
{
    int error = 0;

    *job = (struct jobfile){.text = text, .inherited = ""};
    *entry = 0;
    for (char *one = text; error == 0 && one < text + length;) {
        char *next = one + strlen(one) + 1;

        (*entry)++;
        error = take_entry(job, one);
        one = next;
    }
    if (error < 0)
        return error;
    *entry = 0;
    return job->uid && job->cwd && job->node_count ? 0 : -ENODATA;
}

int jobfile_read(const char *path, struct jobfile *job, int *entry)
{
    size_t length = 0;
    char *text = NULL;
    int error = read_text(path, &text, &length);

    if (error == 0)
        return jobfile_parse(text, length, job, entry);
    *job = (struct jobfile){.text = text};
    *entry = 0;
    return error;
}

void jobfile_free(struct jobfile *job)
{
    free(job->nodes);
    free(job->environment);
    free(job->text);
}

const struct job_node *jobfile_find_node(const struct jobfile *job, const char *host)
{
    for (size_t i = 0; i < job->node_count; i++)
        if (strcmp(job->nodes[i].name, host) == 0 || strcmp(job->nodes[i].address, host) == 0)
            return &job->nodes[i];
    return NULL;
}
