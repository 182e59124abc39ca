/* See wherry.h: each function is one request, or one act and the requests that wait for its end. */
#include "wherry.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "environment.h"

enum { BODY = 512, PATH = 160, POLL = 10 /* s for which the daemon keeps an answer back */, LONGEST = 3600, UNAVAILABLE = 503 /* a host is down */ };

static const char *const rank_variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

int wherry_active(void)
{
    return environment_is_inside();
}

const char *wherry_error(void)
{
    return client_said();
}

static int own_rank(void)
{
    for (size_t i = 0; i < sizeof rank_variables / sizeof *rank_variables; i++) {
        const char *text = getenv(rank_variables[i]);
        size_t length = text ? strspn(text, "0123456789") : 0;

        if (length > 0 && length < 8 && !text[length])
            return atoi(text);
    }
    return -1;
}

/* A text that needs no escape in JSON and in a path. */
static bool is_name(const char *text, const char *more)
{
    size_t length = 0;

    for (; text && text[length]; length++) {
        char c = text[length];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr(more, c)))
            return false;
    }
    return length > 0 && length < 64;
}

static int wrong(const char *what)
{
    client_say(what, "");
    return WHERRY_E_ARGUMENT;
}

/* The result of an error that the daemon reported. */
static int told_error(const struct answer *answer)
{
    char code[32], what[240], why[240];

    answer_text(answer, "code", code, sizeof code);
    answer_text(answer, "what", what, sizeof what);
    answer_text(answer, "why", why, sizeof why);
    client_say(what[0] ? what : "the daemon answers with an error", why);
    if (strcmp(code, "PERMISSION") == 0)
        return WHERRY_E_DENIED;
    return answer->status < 500 || answer->status == UNAVAILABLE ? WHERRY_E_REFUSED : WHERRY_E_FAILED;
}

/* Asks; an error of the daemon is one of the function. The caller frees *memory in any case. */
static int ask(const struct request *request, struct answer *answer, char **memory)
{
    int result = client_ask(request, answer, memory);

    return result == WHERRY_OK && answer->status >= 400 ? told_error(answer) : result;
}

static void read_place(const struct answer *answer, int rank, struct wherry_place *place)
{
    answer_text(answer, "job", place->job, sizeof place->job);
    answer_text(answer, "cluster", place->cluster, sizeof place->cluster);
    answer_text(answer, "node", place->node, sizeof place->node);
    answer_text(answer, "host", place->host, sizeof place->host);
    answer_text(answer, "site", place->site, sizeof place->site);
    place->rank = rank;
    place->ranks = (int)answer_number(answer, "ranks", 0);
}

static int where(int rank, bool own, struct wherry_place *place)
{
    char path[PATH] = "/v1/self", *memory;
    struct request request = {.method = "GET", .path = path};
    struct answer answer;
    int result;

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (!place || (!own && rank < 0))
        return wrong("no place to fill, or a negative rank");
    if (!own)
        snprintf(path, sizeof path, "/v1/self?rank=%d", rank);
    result = ask(&request, &answer, &memory);
    if (result == WHERRY_OK)
        read_place(&answer, rank, place);
    free(memory);
    return result;
}

int wherry_where(struct wherry_place *place)
{
    return where(own_rank(), true, place);
}

int wherry_where_rank(int rank, struct wherry_place *place)
{
    return where(rank, false, place);
}

static double host_number(const struct answer *answer, int index, const char *field, double otherwise)
{
    char name[48];

    snprintf(name, sizeof name, "hosts.%d.%s", index, field);
    return answer_number(answer, name, otherwise);
}

/* Moves the answer's begin on to this host, so that many hosts are not looked through for each. */
static void read_host(struct answer *answer, int index, struct wherry_host *host)
{
    char name[48];
    size_t length;
    const char *found;

    snprintf(name, sizeof name, "hosts.%d.name", index);
    answer_text(answer, name, host->name, sizeof host->name);
    found = answer_find(answer, name, &length);
    if (found) {
        answer->length -= (size_t)(found - answer->body);
        answer->body = found;
    }
    snprintf(name, sizeof name, "hosts.%d.site", index);
    answer_text(answer, name, host->site, sizeof host->site);
    host->cores = host_number(answer, index, "cores", 0.0);
    host->free_cores = host_number(answer, index, "free_cores", 0.0);
    host->load = host_number(answer, index, "load", -1.0);
    host->speed = host_number(answer, index, "speed", 1.0);
    host->memory = (uint64_t)host_number(answer, index, "memory", 0.0);
    host->free_memory = (uint64_t)host_number(answer, index, "free_memory", 0.0);
    host->nodes = (int)host_number(answer, index, "nodes", 0.0);
    host->usable = host_number(answer, index, "usable", 0.0) > 0.0;
}

int wherry_hosts(struct wherry_host *hosts, int room, int *count)
{
    struct request request = {.method = "GET", .path = "/v1/self/hosts"};
    struct answer answer;
    char *memory;
    int result;

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (!count || room < 0 || (room && !hosts))
        return wrong("no hosts to fill");
    result = ask(&request, &answer, &memory);
    if (result == WHERRY_OK) {
        *count = (int)answer_number(&answer, "count", 0.0);
        for (int i = 0; i < *count && i < room; i++)
            read_host(&answer, i, &hosts[i]);
    }
    free(memory);
    return result;
}

/* Waits for the end of an operation; *moved gets its count of moves. */
static int await_end(const char *operation, int *moved)
{
    char path[PATH];
    struct request request = {.method = "GET", .path = path, .wait = POLL};

    snprintf(path, sizeof path, "/v1/self/operations/%s?wait=%d", operation, POLL);
    for (;;) {
        struct answer answer;
        char *memory, state[32] = "";
        int result = ask(&request, &answer, &memory);

        if (result == WHERRY_OK) {
            answer_text(&answer, "state", state, sizeof state);
            if (moved)
                *moved = (int)answer_number(&answer, "moved", 0.0);
            if (strcmp(state, "running") != 0 && strcmp(state, "done") != 0) {
                told_error(&answer);
                result = WHERRY_E_FAILED;
            }
        }
        free(memory);
        if (result != WHERRY_OK || strcmp(state, "done") == 0)
            return result;
    }
}

/* Begins an act, and waits for its end unless it is only to be known. */
static int act(const char *path, const char *body, bool until_done, int *moved)
{
    char key[40], operation[64] = "", state[32] = "", *memory;
    struct request request = {.method = "POST", .path = path, .body = body, .key = key};
    struct answer answer;
    int result = client_new_key(key);

    if (result != WHERRY_OK)
        return result;
    result = ask(&request, &answer, &memory);
    if (result == WHERRY_OK) {
        answer_text(&answer, "operation", operation, sizeof operation);
        answer_text(&answer, "state", state, sizeof state);
        if (moved)
            *moved = (int)answer_number(&answer, "moved", 0.0);
    }
    free(memory);
    if (result != WHERRY_OK || !until_done || strcmp(state, "done") == 0)
        return result;
    if (!is_name(operation, "-")) {
        client_say("the daemon's answer names no operation", "");
        return WHERRY_E_FAILED;
    }
    return await_end(operation, moved);
}

static int move(const char *what, const char *host)
{
    char body[BODY];

    if (!is_name(host, "-_."))
        return wrong("that is no name of a host");
    snprintf(body, sizeof body, "{%s\"host\":\"%s\"}", what, host);
    return act("/v1/self/moves", body, true, NULL);
}

int wherry_move(const char *host)
{
    return environment_is_inside() ? move("", host) : WHERRY_OUTSIDE;
}

int wherry_move_rank(int rank, const char *host)
{
    char what[48];

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (rank < 0)
        return wrong("a negative rank");
    snprintf(what, sizeof what, "\"rank\":%d,", rank);
    return move(what, host);
}

int wherry_move_node(const char *node, const char *host)
{
    char what[96];

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (!is_name(node, "-_."))
        return wrong("that is no name of a node");
    snprintf(what, sizeof what, "\"node\":\"%s\",", node);
    return move(what, host);
}

/* A number of JSON, whatever the locale: thousandths. */
static void put_seconds(char *to, size_t room, double seconds)
{
    long long thousandths = (long long)(seconds * 1000.0);

    snprintf(to, room, "%lld.%03lld", thousandths / 1000, thousandths % 1000);
}

int wherry_move_when_cheap(const char *host, double downtime, double within)
{
    char body[BODY], most[32], last[32], where[96] = "";

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if ((host && !is_name(host, "-_.")) || !(downtime >= 0.0 && downtime <= LONGEST) ||
        !(within > 0.0 && within <= LONGEST))
        return wrong("no name of a host, or seconds that are not between 0 and 3600");
    put_seconds(most, sizeof most, downtime);
    put_seconds(last, sizeof last, within);
    if (host)
        snprintf(where, sizeof where, "\"host\":\"%s\",", host);
    snprintf(body, sizeof body, "{%s\"downtime\":%s,\"within\":%s}", where, most, last);
    return act("/v1/self/wishes", body, false, NULL);
}

int wherry_balance(int *moved)
{
    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (moved)
        *moved = 0;
    return act("/v1/self/balance", "{}", true, moved);
}

static int hint(const char *body)
{
    struct request request = {.method = "PUT", .path = "/v1/self/hints", .body = body};
    struct answer answer;
    char *memory;
    int result = ask(&request, &answer, &memory);

    free(memory);
    return result;
}

int wherry_phase_begin(const char *name, int critical)
{
    char body[BODY];

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (!is_name(name, "-_.:/ "))
        return wrong("a phase has a name of at most 63 letters, digits, blanks and -_.:/");
    snprintf(body, sizeof body, "{\"rank\":%d,\"phase\":\"%s\",\"critical\":%s}", own_rank(), name,
             critical ? "true" : "false");
    return hint(body);
}

int wherry_phase_end(void)
{
    char body[BODY];

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    snprintf(body, sizeof body, "{\"rank\":%d,\"phase\":\"\"}", own_rank());
    return hint(body);
}

int wherry_iterations_left(long iterations)
{
    char body[BODY];

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (iterations < 0)
        return wrong("a negative number of iterations");
    snprintf(body, sizeof body, "{\"rank\":%d,\"iterations_left\":%ld}", own_rank(), iterations);
    return hint(body);
}

int wherry_expected(double seconds)
{
    char body[BODY], left[32];

    if (!environment_is_inside())
        return WHERRY_OUTSIDE;
    if (!(seconds >= 0.0 && seconds < 1e9))
        return wrong("seconds that are not between 0 and 1e9");
    put_seconds(left, sizeof left, seconds);
    snprintf(body, sizeof body, "{\"rank\":%d,\"expected\":%s}", own_rank(), left);
    return hint(body);
}
