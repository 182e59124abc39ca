/*
 * objects DIRECTORY CASE...: one process each; see objects.h. DIRECTORY gets CASE.ready, and CASE.result after `go`; of an
 * activity also CASE.now, "right LAPS", again and again, and CASE.result at once when something is wrong.
 */
#include "objects.h"

#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static const double BETWEEN_REPORTS = 0.02;
static const struct object *const groups[] = {timers, files, ipc, sockets, messages, processes, rare, socket_options, unseen};
static const struct activity *const activities[] = {mappings, flows, crowds};
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

pid_t fork_helper(void)
{
    pid_t parent = getpid(), made = fork();

    if (!made && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    return made;
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

static void keep_on(const struct activity *activity)
{
    char go[256], text[64];
    const char *problem;
    unsigned long laps = 0;
    double said = 0;
    int is_last = 0;

    snprintf(go, sizeof go, "%s/go", directory);
    problem = activity->make();
    say(activity->name, "ready", problem);
    while (!*problem && !is_last) {
        is_last = !access(go, F_OK);
        problem = activity->work();
        laps++;
        if (!*problem && now_on(CLOCK_MONOTONIC) > said + BETWEEN_REPORTS) {
            snprintf(text, sizeof text, "right %lu", laps);
            say(activity->name, "now", text);
            said = now_on(CLOCK_MONOTONIC);
        }
        sleep_ms(1);
    }
    say(activity->name, "result", problem);
}

static const struct activity *find_activity(const char *name)
{
    for (size_t i = 0; i < sizeof activities / sizeof *activities; i++)
        for (const struct activity *activity = activities[i]; activity->name; activity++)
            if (!strcmp(activity->name, name))
                return activity;
    return NULL;
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
        const struct activity *activity = find_activity(words[i]);

        if (!object && !activity)
            say(words[i], "ready", "no such case");
        else if (!fork()) {
            setsid();
            alarm(0);
            if (object)
                run(object);
            else
                keep_on(activity);
            _exit(0);
        }
    }
    return 0;
}
