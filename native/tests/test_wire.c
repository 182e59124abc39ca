/*
 * The parsers of wherry/wire.h and the cipher of wherry/seal.h on the vectors; each input lies in a block of its own
 * size, so ASan sees a read beyond.
 */
#include "wherry/seal.h"

#include <string.h>

#include "check.h"
#include "vectors.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static uint8_t *copy_exactly(const void *bytes, size_t count)
{
    uint8_t *copy = malloc(count ? count : 1);

    CHECK(copy);
    memcpy(copy, bytes, count);
    return copy;
}

static void test_frames(const struct frame_vector *vectors, size_t vector_count, bool sealed)
{
    for (size_t i = 0; i < vector_count; i++) {
        const struct frame_vector *vector = &vectors[i];
        uint8_t bytes[64], *exact;
        size_t count = strlen(vector->hex) / 2, wanted;
        struct wire_frame frame;
        ssize_t size;

        for (size_t at = 0; at < count; at++)
            CHECK(sscanf(vector->hex + 2 * at, "%2hhx", &bytes[at]) == 1);
        exact = copy_exactly(bytes, count);
        size = wire_parse_frame(exact, count, sealed, &frame, &wanted);
        CHECK(size == vector->size);
        CHECK(wanted == (size_t)vector->wanted);
        if (size > 0) {
            uint8_t header[WIRE_HEADER];

            wire_put_header(header, frame.type, frame.length);
            CHECK(memcmp(header, exact, WIRE_HEADER) == 0);
            CHECK(frame.payload == exact + WIRE_HEADER);
        }
        free(exact);
    }
}

static void test_runs(void)
{
    static struct wire_run run;

    for (size_t i = 0; i < COUNT(run_vectors); i++) {
        uint8_t *exact = copy_exactly(run_vectors[i].payload, run_vectors[i].length);

        CHECK(wire_parse_run(exact, run_vectors[i].length, &run) == run_vectors[i].result);
        if (i == 0) {
            CHECK(run.uid == 1000 && run.gid == 100 && run.group_count == 2);
            CHECK(run.groups[0] == 4 && run.groups[1] == 24);
            CHECK(strcmp(run.cwd, "/home/u") == 0);
            CHECK(run.inherited.umask == 077 && run.inherited.has_nice && run.inherited.nice == -5);
            CHECK(run.inherited.limit_count == 1 && run.inherited.limits[0].resource == RLIMIT_CORE);
            CHECK(run.inherited.limits[0].limit.rlim_cur == 0);
            CHECK(run.inherited.limits[0].limit.rlim_max == RLIM_INFINITY);
            CHECK(strcmp(run.argv[1], "-l") == 0 && !run.argv[2]);
            CHECK(strcmp(run.envp[0], "PATH=/bin") == 0 && strcmp(run.envp[1], "EMPTY=") == 0 && !run.envp[2]);
        }
        wire_free_run(&run);
        free(exact);
    }
}

static void test_inherited(void)
{
    static const char *const wrong[] = {
        "umask", "umask=", "umask=-1", "umask=18,", "umask=18,umask=18", "nice=20", "nice=-21", "nice=--1", "nice=1,nice=1",
        "core=1", "core=2:1", "core=unlimited:1", "core=1:1,core=1:1", "core=:", "rss=1:1", "=1", ",",
        "stack=99999999999999999999:unlimited",
    };
    struct inherited inherited;

    for (size_t i = 0; i < COUNT(wrong); i++)
        CHECK(inherited_parse(wrong[i], &inherited) == -EPROTO);
    CHECK(inherited_parse("", &inherited) == 0 && inherited.umask == 022 && !inherited.has_nice);
    CHECK(inherited_parse("as=1:2,core=1:2,cpu=1:2,data=1:2,fsize=1:2,memlock=1:2,nofile=1:2,stack=1:2,nice=-20,umask=0",
                          &inherited) == 0);
    CHECK(inherited.limit_count == INHERITED_LIMITS && inherited.nice == -20 && inherited.umask == 0);
    inherited_apply(&(struct inherited){.umask = 077, .limit_count = 1,
                                        .limits = {{RLIMIT_CORE, {.rlim_cur = 0, .rlim_max = 0}}}});
    inherited_apply(&(struct inherited){.umask = 022, .limit_count = 1,
                                        .limits = {{RLIMIT_CORE, {.rlim_cur = 1, .rlim_max = RLIM_INFINITY}}}});
}

static int parse_kill(const char *text, pid_t *pid, int *number)
{
    return wire_parse_kill((const uint8_t *)text, strlen(text), pid, number);
}

static void test_kill(void)
{
    int number;
    pid_t pid;

    CHECK(parse_kill("10 9", &pid, &number) == 0 && pid == 10 && number == 9);
    CHECK(parse_kill("10 0", &pid, &number) == 0 && number == 0);
    CHECK(parse_kill("1 9", &pid, &number) == -EPROTO); /* the init itself */
    CHECK(parse_kill("0 9", &pid, &number) == -EPROTO);
    CHECK(parse_kill("-1 9", &pid, &number) == -EPROTO);
    CHECK(parse_kill("10 65", &pid, &number) == -EPROTO);
    CHECK(parse_kill("10 9 ", &pid, &number) == -EPROTO);
    CHECK(parse_kill("109", &pid, &number) == -EPROTO);
    CHECK(parse_kill("", &pid, &number) == -EPROTO);
}

static void test_jobs(void)
{
    char job[WIRE_JOB_MAX + 1], longest[WIRE_JOB_MAX + 1];

    memset(longest, 'a', sizeof longest);
    CHECK(wire_parse_job((const uint8_t *)"job-1m8", 7, job) == 0 && strcmp(job, "job-1m8") == 0);
    CHECK(wire_parse_job((const uint8_t *)longest, WIRE_JOB_MAX, job) == 0 && strlen(job) == WIRE_JOB_MAX);
    CHECK(wire_parse_job((const uint8_t *)longest, WIRE_JOB_MAX + 1, job) == -EPROTO);
    CHECK(wire_parse_job((const uint8_t *)"", 0, job) == -EPROTO);
    CHECK(wire_parse_job((const uint8_t *)"a b", 3, job) == -EPROTO);
    CHECK(wire_parse_job((const uint8_t *)"a\xe9", 2, job) == -EPROTO);
    CHECK(wire_parse_job((const uint8_t *)"a", 2, job) == -EPROTO);
}

static void test_keys(void)
{
    char key[WIRE_KEY + 1];

    memset(key, 'a', sizeof key);
    CHECK(wire_check_key(key, WIRE_KEY) == 0);
    CHECK(wire_check_key(key, WIRE_KEY - 1) == -EPROTO);
    key[5] = 'g';
    CHECK(wire_check_key(key, WIRE_KEY) == -EPROTO);
}

/* The result of Python's cryptography for the same key, number and payload. */
static void test_cipher(void)
{
    static const char known[] = "4f0000000537ad44b034837c285132db9497b5f806fe9054aca6";
    uint8_t frame[WIRE_HEADER + 5 + WIRE_TAG] = {0};
    struct seal seal = {.key = {1, 2, 3}, .count = 7};
    char hex[2 * sizeof frame + 1];

    memcpy(frame + WIRE_HEADER, "hello", 5);
    CHECK(seal_close(&seal, frame, 'O', 5) == sizeof frame);
    for (size_t i = 0; i < sizeof frame; i++)
        sprintf(hex + 2 * i, "%02x", frame[i]);
    CHECK(strcmp(hex, known) == 0);
}

static void test_seal(void)
{
    uint8_t frame[WIRE_HEADER + 3 + WIRE_TAG], copy[sizeof frame];
    struct seal sender = {.key = {9}}, receiver = {.key = {9}};

    for (size_t bit = 0; bit <= 8 * sizeof frame; bit++) {
        memcpy(frame + WIRE_HEADER, "abc", 3);
        CHECK(seal_close(&sender, frame, 'I', 3) == sizeof frame);
        memcpy(copy, frame, sizeof frame);
        if (bit < 8 * sizeof frame)
            copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(seal_open(&receiver, copy, 3) == (bit < 8 * sizeof frame ? -EBADMSG : 0));
    }
    CHECK(memcmp(copy + WIRE_HEADER, "abc", 3) == 0);
    CHECK(seal_open(&receiver, frame, 3) == -EBADMSG); /* the same once more */
    sender.count = receiver.count = SEAL_FRAMES_MAX;
    CHECK(seal_close(&sender, frame, 'I', 3) == -EOVERFLOW);
    CHECK(seal_open(&receiver, frame, 3) == -EOVERFLOW);
}

int main(void)
{
    test_frames(hello_vectors, COUNT(hello_vectors), false);
    test_frames(sealed_vectors, COUNT(sealed_vectors), true);
    test_cipher();
    test_seal();
    test_runs();
    test_inherited();
    test_kill();
    test_jobs();
    test_keys();
    return 0;
}
