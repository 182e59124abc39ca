#include "criu_locks.h"

#include "proc.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

static char *list; /* each line: KIND TYPE FIRST LAST PATH */

void learn_mapped_locks(int images)
{
    free(list);
    list = contents(images, "mapped-locks");
}

/* The next of words that a blank ends, which becomes a zero byte; NULL: there is none. */
static char *next_word(char **at)
{
    char *word = *at, *end = word ? strchr(word, ' ') : NULL;

    *at = end ? end + 1 : NULL;
    if (end)
        *end = 0;
    return end ? word : NULL;
}

static void take(int file, const char *kind, const char *type, const char *first, const char *last)
{
    bool is_exclusive = !strcmp(type, "WRITE");
    struct flock range = {.l_type = is_exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET, .l_start = atoll(first)};

    if (strcmp(last, "EOF"))
        range.l_len = atoll(last) - range.l_start + 1;
    if (!strcmp(kind, "FLOCK"))
        flock(file, (is_exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
    else if (!strcmp(kind, "OFDLCK"))
        fcntl(file, F_OFD_SETLK, &range);
}

/* Takes the lock of a line if it is of this file. */
static void take_if_of(const char *path, int file, char *line)
{
    char *kind = next_word(&line), *type = next_word(&line), *first = next_word(&line), *last = next_word(&line);

    if (last && *line == '/' && !strcmp(line + 1, path))
        take(file, kind, type, first, last);
}

void take_mapped_locks(const char *path, int file)
{
    char *copy = list ? strdup(list) : NULL, *line = copy, *end;

    path += *path == '/'; /* CRIU opens names from the top of the node's directories without it */
    while (line && (end = strchr(line, '\n'))) {
        *end = 0;
        take_if_of(path, file, line);
        line = end + 1;
    }
    free(copy);
}
