/* objects DIRECTORY CASE...: one process each; see objects.h. DIRECTORY gets CASE.ready, and CASE.result after `go`. */
#include "objects.h"

#include <stdarg.h>
#include <sys/wait.h>

static const struct object *const groups[] = {timers, files, ipc, sockets, processes, rare};
static const char *directory;

const char *wrong(const char *format, ...)
{
    static char text[512];
    va_list words;

    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    return text;
}

double now_on(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void sleep_ms(int ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};

    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static void say(const char *name, const char *kind, const char *text)
{
    char path[256], last[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/.%s.%s", directory, name, kind);
    snprintf(last, sizeof last, "%s/%s.%s", directory, name, kind);
    file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) || rename(path, last))
        abort();
}

static void run(const struct object *object)
{
    char go[256];
    const char *text;

    snprintf(go, sizeof go, "%s/go", directory);
    text = object->make();
    say(object->name, "ready", text);
    if (*text)
        return;
    while (access(go, F_OK))
        sleep_ms(20);
    say(object->name, "result", object->check());
}

static const struct object *find(const char *name)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (const struct object *object = groups[i]; object->name; object++)
            if (!strcmp(object->name, name))
                return object;
    return NULL;
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    directory = words[1];
    for (int i = 2; i < count; i++) {
        const struct object *object = find(words[i]);

        if (!object)
            say(words[i], "ready", "no such case");
        else if (!fork()) {
            setsid();
            alarm(0);
            run(object);
            _exit(0);
        }
    }
    return 0;
}
