/* See events.h. */
#include "events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "moves.h"

static const char *const trackings[TRACKING_KINDS] = {"none", "mprotect", "userfaultfd"};

/* `from`: offset of these bytes in the output of the process. */
static void say_output(struct client *client, uint32_t process, uint64_t from, const char *bytes, size_t count)
{
    char escaped[6 * 1024 + 1];

    for (size_t at = 0; at < count; at += 1024) {
        size_t some = count - at < 1024 ? count - at : 1024;

        client_escape(bytes + at, some, escaped);
        client_say(client, "{\"event\": \"output\", \"process\": %u, \"from\": %" PRIu64 ", \"text\": \"%s\"}", process,
                   from + at, escaped);
    }
}

void events_attach(struct events *events, struct client *client, uint32_t process, uint64_t from)
{
    const struct output *output = &events->outputs[process];
    uint64_t skip = from > output->dropped ? from - output->dropped : 0;

    if (skip > output->count)
        skip = output->count;
    client->attached |= 1u << process;
    say_output(client, process, output->dropped + skip, output->bytes + skip, output->count - (size_t)skip);
    events->told[process] = 0; /* if it has ended, this client gets its end too */
}

static void keep_output(struct events *events, uint32_t process, const char *bytes, size_t count)
{
    struct output *output = &events->outputs[process];

    for (int i = 0; i < CLIENT_MAX; i++)
        if (events->clients->all[i].fd >= 0 && events->clients->all[i].attached >> process & 1)
            say_output(&events->clients->all[i], process, output->dropped + output->count, bytes, count);
    if (!output->bytes)
        output->bytes = malloc(KEPT_MAX);
    if (!output->bytes) {
        output->dropped += count;
        return;
    }
    if (output->count + count > KEPT_MAX) {
        memmove(output->bytes, output->bytes + KEPT_MAX / 2, output->count - KEPT_MAX / 2);
        output->count -= KEPT_MAX / 2;
        output->dropped += KEPT_MAX / 2;
    }
    memcpy(output->bytes + output->count, bytes, count);
    output->count += count;
}

static void tell_end(struct events *events, uint32_t process, struct place place)
{
    struct location *location = &events->shared->locations[process];
    char why[6 * REASON_SIZE + 1];

    client_escape(location->why, strlen(location->why), why);
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &events->clients->all[i];

        if (client->fd < 0 || !(client->attached >> process & 1))
            continue;
        client_say(client, "{\"event\": \"%s\", \"process\": %u, \"status\": %d, \"moves\": %u, \"why\": \"%s\"}",
                   place.state == PLACE_LOST ? "lost" : "ended", process, location->status,
                   atomic_load(&location->moves), why);
        client->attached &= ~(1u << process);
        if (!client->attached)
            client_close(client);
    }
    events->told[process] = ++events->tellings;
    names_process_ended(events->names, process);
}

void events_output(struct events *events, const struct mail *mail)
{
    if (mail->from < PROCESS_MAX && mail->size <= MAIL_SIZE)
        keep_output(events, mail->from, (const char *)mail->bytes, mail->size);
}

static void tell_names(struct events *events)
{
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &events->clients->all[i];
        const struct name *name = NULL;

        if (client->fd >= 0 && client->awaits[0])
            name = names_find(events->names, client->awaits);
        if (!name)
            continue;
        client_say(client, "{\"event\": \"named\", \"process\": %u, \"port\": %d}", name->process, name->port);
        client_close(client);
    }
}

void events_serve(struct events *events)
{
    struct place places[PROCESS_MAX];
    struct mail mail;

    tell_names(events); /* before the ends: a program's names go with it */
    /* Location entries first: the output of a process before its end is then in the port. */
    for (uint32_t process = 1; process < PROCESS_MAX; process++)
        places[process] = shared_place(events->shared, process);
    while (mailbox_take(events->shared, CONSOLE_PROCESS, 0, &mail))
        events_output(events, &mail);
    for (uint32_t process = 1; process < PROCESS_MAX; process++)
        if (places[process].state >= PLACE_ENDED && !events->told[process])
            tell_end(events, process, places[process]);
}

void events_move_ended(struct events *events, const struct move *move, bool done)
{
    char why[6 * REASON_SIZE + 1];

    client_escape(move->why, strlen(move->why), why);
    for (int i = 0; i < CLIENT_MAX; i++) {
        struct client *client = &events->clients->all[i];

        if (client->fd < 0 || !(client->moving >> move->to & 1))
            continue;
        if (done)
            client_say(client,
                       "{\"event\": \"moved\", \"process\": %u, \"from\": %u, \"to\": %u, \"mode\": \"%s\", "
                       "\"bytes\": %" PRIu64 ", \"before\": %" PRIu64 ", \"rounds\": %u, \"tracking\": \"%s\", "
                       "\"at_most\": %s, \"asked_ns\": %" PRId64
                       ", \"prepare_ns\": %" PRId64 ", \"freeze_ns\": %" PRId64
                       ", \"copy_ns\": %" PRId64 ", \"commit_ns\": %" PRId64 ", \"first_ns\": %" PRId64
                       ", \"all_ns\": %" PRId64 "}",
                       move->process, move->from, move->to, moves_mode_name(move->mode), move->bytes,
                       move->before, move->rounds, trackings[move->tracking % TRACKING_KINDS],
                       move->at_most ? "true" : "false", move->asked,
                       move->freezing - move->asked, move->frozen - move->freezing, move->copied - move->frozen,
                       move->committed - move->copied,
                       move->first ? move->first - move->freezing : 0, move->all ? move->all - move->freezing : 0);
        else
            client_say(client, "{\"event\": \"failed\", \"process\": %u, \"code\": \"MOVE_FAILED\", \"why\": \"%s\"}",
                       move->process, why);
        client->moving &= ~(1u << move->to);
        if (!client->moving)
            client_close(client);
    }
}

void events_clear(struct events *events, uint32_t process)
{
    events->told[process] = 0;
    events->outputs[process].count = 0;
    events->outputs[process].dropped = 0;
}

void events_init(struct events *events, struct clients *clients, struct names *names)
{
    events->shared = names->shared;
    events->clients = clients;
    events->names = names;
}
