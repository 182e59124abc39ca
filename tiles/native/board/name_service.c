/* See name_service.h. */
#include "name_service.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "hosts/processes.h"

const struct name *names_find(const struct names *names, const char *name)
{
    for (int i = 0; i < NAMES_MAX; i++)
        if (names->names[i].name[0] && strcmp(names->names[i].name, name) == 0)
            return &names->names[i];
    return NULL;
}

static int link_name(struct names *names, const char *text, uint32_t process, int port)
{
    const struct name *name = names_find(names, text);

    if (!text[0])
        return -EINVAL;
    if (name)
        return name->process == process && name->port == port ? 0 : -EEXIST;
    for (int i = 0; i < NAMES_MAX; i++)
        if (!names->names[i].name[0]) {
            names->names[i].process = process;
            names->names[i].port = port;
            snprintf(names->names[i].name, NAME_SIZE, "%s", text);
            return 0;
        }
    return -ENOSPC;
}

static int unlink_name(struct names *names, const char *text, uint32_t process)
{
    const struct name *name = names_find(names, text);

    if (!name)
        return -ENOENT;
    if (name->process != process)
        return -EPERM;
    names->names[name - names->names].name[0] = 0;
    return 0;
}

static void answer(struct names *names, uint32_t process, uint32_t port, int result, const struct name *name)
{
    struct server_answer answer = {
        .result = result,
        .process = name ? (int)name->process : 0,
        .port = name ? name->port : 0,
    };

    if (port < PORT_MAX && mailbox_put(names->shared, process, port, CONSOLE_PROCESS, &answer, sizeof(answer)) == 0)
        shared_ring_process(names->shared, process);
}

/* Whether the number still belongs to a rank of the same program. */
static bool is_mate(const struct names *names, uint32_t process, uint32_t other)
{
    const struct location *one = &names->shared->locations[process], *two = &names->shared->locations[other];

    return process != other && one->ranks == two->ranks && one->members[two->rank] == other &&
           two->members[one->rank] == process;
}

static void end_others(struct names *names, uint32_t process, int status, const char *why)
{
    const struct location *location = &names->shared->locations[process];

    for (uint32_t rank = 0; location->ranks > 1 && rank < location->ranks; rank++)
        if (is_mate(names, process, location->members[rank]))
            processes_end(names->net, location->members[rank], status, why);
}

void names_process_ended(struct names *names, uint32_t process)
{
    const struct location *location = &names->shared->locations[process];
    char why[REASON_SIZE];

    for (int i = 0; i < NAMES_MAX; i++)
        if (names->names[i].process == process)
            names->names[i].name[0] = 0;
    names->awaits[process].name[0] = 0;
    if (location->why[0] && !atomic_load(&location->end)) {
        snprintf(why, sizeof(why), "rank %u: %.90s", location->rank, location->why);
        end_others(names, process, 128, why);
    }
}

static void execute(struct names *names, uint32_t process, struct server_request *request)
{
    char why[REASON_SIZE];
    const struct name *name;

    request->name[sizeof(request->name) - 1] = 0;
    name = names_find(names, request->name);
    switch (request->what) {
    case SERVER_LINK:
        answer(names, process, request->reply, link_name(names, request->name, process, request->number), NULL);
        break;
    case SERVER_UNLINK:
        answer(names, process, request->reply, unlink_name(names, request->name, process), NULL);
        break;
    case SERVER_FIND:
        answer(names, process, request->reply, name ? 0 : -ENOENT, name);
        break;
    case SERVER_AWAIT:
        if (name || !request->name[0])
            answer(names, process, request->reply, name ? 0 : -EINVAL, name);
        else
            names->awaits[process] = *request;
        break;
    case SERVER_ABORT:
        snprintf(why, sizeof(why), "rank %u aborted the program", names->shared->locations[process].rank);
        end_others(names, process, request->number, why);
        break;
    default:
        answer(names, process, request->reply, -ENOSYS, NULL);
    }
}

static void serve_waiting(struct names *names)
{
    for (uint32_t process = 1; process < PROCESS_MAX; process++) {
        struct server_request *request = &names->awaits[process];
        const struct name *name = request->name[0] ? names_find(names, request->name) : NULL;

        if (!name)
            continue;
        answer(names, process, request->reply, 0, name);
        request->name[0] = 0;
    }
}

void names_request(struct names *names, const struct mail *mail)
{
    struct server_request request;

    if (mail->size != sizeof(request) || mail->from >= PROCESS_MAX)
        return;
    memcpy(&request, mail->bytes, sizeof(request));
    execute(names, mail->from, &request);
}

void names_serve(struct names *names)
{
    struct mail mail;

    while (mailbox_take(names->shared, CONSOLE_PROCESS, SERVER_PORT, &mail))
        names_request(names, &mail);
    serve_waiting(names);
}

void names_clear(struct names *names, uint32_t process)
{
    names->awaits[process].name[0] = 0;
}

void names_init(struct names *names, struct net *net)
{
    names->net = net;
    names->shared = net->shared;
}
