/* See point_to_point.h. */
#include "point_to_point.h"

#define PORT 8              /* mailbox port of packets */
#define EAGER_MAX 96        /* bytes in a packet */
#define REQUEST_MAX 128     /* mpi.h says so */
#define UNEXPECTED_MAX 256  /* packets that came before their receive; then the mailbox fills, and senders wait */
#define NOTHING (-1)        /* no operation */
/*
 * The kernel has 32 operations. Of receives there are at most two for each of the 8 portals, and one is the mailbox's.
 */
#define PACKET_OPERATIONS 5 /* of sends: packets on their way; a receiver that waits takes them out of its mailbox */
#define BULK_OPERATIONS 6   /* portal sends that begin at once, and perhaps wait long for their receive */
#define ASKED_OPERATIONS 4  /* portal sends whose receive has asked for them: they get on */

/* ANNOUNCED: its portal send is under way. ASKING: it begins when a READY with its ticket is back from the receive. */
enum packet_kind { PACKET_EAGER, PACKET_ANNOUNCED, PACKET_ASKING, PACKET_READY };

struct packet {
    int kind, context, source, tag;
    unsigned ticket;        /* its portal is ticket % PORTAL_MAX */
    unsigned unused;
    unsigned long size;
    unsigned char bytes[EAGER_MAX];
};

_Static_assert(sizeof(struct packet) == MAIL_SIZE, "a packet is a message");
_Static_assert(1 + 2 * PORTAL_MAX + PACKET_OPERATIONS + BULK_OPERATIONS + ASKED_OPERATIONS <= OPERATION_MAX,
               "operations");

/*
 * A send: QUEUED until it is its turn, then ACTIVE until they are done.
 * A receive: POSTED until a packet matches; MATCHED while it waits for its portal; ACTIVE while that brings the bytes.
 */
enum state { FREE, QUEUED, POSTED, MATCHED, ACTIVE, DONE };

struct request {
    enum state state;
    bool sends;
    int peer, tag, context; /* of a receive: as it is asked for, with wildcards */
    unsigned char *bytes;
    size_t size;
    int mail, bulk;         /* operations; a receive's mail is its READY */
    bool owes, asked;       /* ASKING: its portal send is still to be started; its receive has asked for it */
    unsigned long turn;     /* requests are looked at in the order in which they were made */
    struct packet packet;   /* the packet that is sent, or that matched */
};

int message_rank, message_ranks;

static int processes[16];
static struct request requests[REQUEST_MAX];
static struct packet unexpected[UNEXPECTED_MAX]; /* in order of arrival */
static int unexpected_count;
static struct packet incoming;
static int incoming_operation = NOTHING;
static bool is_stalled; /* `incoming` holds a packet for which there is no room */
static int owed;        /* requests that owe their portal send */
static unsigned long turns;
static unsigned tickets, portals_in_use;

void message_fail(const char *what, long number)
{
    say("MPI: rank %d: %s (%ld)\n", message_rank, what, number);
    abort_ranks(1);
}

size_t message_size(int count, MPI_Datatype type)
{
    static const unsigned char sizes[] = {1, 1, sizeof(int), sizeof(long), sizeof(double)};

    if (count < 0)
        message_fail("a count is negative", count);
    if (type < 0 || type >= (int)sizeof(sizes))
        message_fail("there is no such datatype", type);
    return (size_t)count * sizes[type];
}

void message_begin(void)
{
    message_rank = info(INFO_RANK);
    message_ranks = info(INFO_RANKS);
    for (int rank = 0; rank < message_ranks; rank++)
        while ((processes[rank] = info_member(rank)) < 0)
            thread_yield(); /* it is being started */
    for (int i = 0; i < REQUEST_MAX; i++)
        requests[i].mail = requests[i].bulk = NOTHING;
}

static struct request *make(void)
{
    for (int i = 0; i < REQUEST_MAX; i++)
        if (requests[i].state == FREE) {
            requests[i].turn = turns++;
            requests[i].owes = requests[i].asked = false;
            return &requests[i];
        }
    message_fail("there are too many requests", REQUEST_MAX);
}

/* The oldest request of a state that was made after another one (0: after none), or NULL. */
static struct request *next_of(enum state state, const struct request *after)
{
    struct request *found = NULL;

    for (int i = 0; i < REQUEST_MAX; i++)
        if (requests[i].state == state && (!after || requests[i].turn > after->turn) &&
            (!found || requests[i].turn < found->turn))
            found = &requests[i];
    return found;
}

static int count_packets(void)
{
    int count = 0;

    for (int i = 0; i < REQUEST_MAX; i++)
        count += requests[i].state == ACTIVE && requests[i].sends && requests[i].mail != NOTHING;
    return count;
}

static int count_bulks(enum packet_kind kind)
{
    int count = 0;

    for (int i = 0; i < REQUEST_MAX; i++)
        count += requests[i].state == ACTIVE && requests[i].sends && requests[i].bulk != NOTHING &&
                 requests[i].packet.kind == (int)kind;
    return count;
}

static void send_bulk(struct request *request)
{
    const struct packet *packet = &request->packet;

    if (request->owes)
        owed--;
    request->owes = false;
    request->bulk = start_portal_send(processes[request->peer], (int)(packet->ticket % PORTAL_MAX), (int)packet->ticket,
                                      request->bytes, request->size);
    if (request->bulk < 0)
        message_fail("cannot send to rank", request->peer);
}

/*
 * The oldest packets, in order: a send's packet is never behind another's bulk, which may wait for later packets.
 */
static void start_sends(void)
{
    struct request *request;

    while ((request = next_of(QUEUED, NULL)) && count_packets() < PACKET_OPERATIONS) {
        struct packet *packet = &request->packet;

        if (packet->kind == PACKET_ANNOUNCED && count_bulks(PACKET_ANNOUNCED) < BULK_OPERATIONS)
            send_bulk(request);
        else if (packet->kind == PACKET_ANNOUNCED)
            packet->kind = PACKET_ASKING;
        request->owes = packet->kind == PACKET_ASKING;
        owed += request->owes;
        request->mail = start_mail_send(processes[request->peer], PORT, packet, sizeof(*packet));
        if (request->mail < 0)
            message_fail("cannot send to rank", request->peer);
        request->state = ACTIVE;
    }
    for (request = NULL; owed && (request = next_of(ACTIVE, request)) &&
         count_bulks(PACKET_ASKING) < ASKED_OPERATIONS; )
        if (request->owes && request->asked)
            send_bulk(request);
}

int message_send(const void *bytes, size_t size, int to, int tag, int context)
{
    struct request *request = make();

    if (to < 0 || to >= message_ranks)
        message_fail("there is no rank", to);
    request->sends = true;
    request->peer = to;
    request->bytes = (unsigned char *)bytes;
    request->size = size;
    request->packet.context = context;
    request->packet.source = message_rank;
    request->packet.tag = tag;
    request->packet.size = size;
    request->packet.kind = size <= EAGER_MAX ? PACKET_EAGER : PACKET_ANNOUNCED;
    if (size <= EAGER_MAX)
        memcpy(request->packet.bytes, bytes, size);
    else
        request->packet.ticket = tickets++ & 0xffffff;
    request->state = QUEUED;
    start_sends();
    return (int)(request - requests);
}

static bool is_wanted(const struct packet *packet, int from, int tag, int context)
{
    return packet->context == context && (from == MPI_ANY_SOURCE || from == packet->source) &&
           (tag == MPI_ANY_TAG || tag == packet->tag);
}

/* The receive gets its portal, if that is free. */
static void start_bulk(struct request *request)
{
    const struct packet *packet = &request->packet;
    int portal = (int)(packet->ticket % PORTAL_MAX);

    if (portals_in_use >> portal & 1)
        return;
    if (portal_allow(portal, processes[packet->source], (int)packet->ticket, packet->size) == 0)
        request->bulk = start_portal_receive(portal, request->bytes, packet->size);
    if (request->bulk < 0)
        message_fail("cannot receive from rank", packet->source);
    portals_in_use |= 1u << portal;
    request->state = ACTIVE;
    if (packet->kind != PACKET_ASKING)
        return;
    request->packet.kind = PACKET_READY; /* it goes back as it came: the ticket identifies its send */
    request->mail = start_mail_send(processes[packet->source], PORT, packet, sizeof(*packet));
    if (request->mail < 0)
        message_fail("cannot receive from rank", packet->source);
}

static void match(struct request *request, const struct packet *packet)
{
    request->packet = *packet;
    if (packet->size > request->size)
        message_fail("a message is longer than its receive; bytes", (long)packet->size);
    if (packet->kind == PACKET_EAGER) {
        memcpy(request->bytes, packet->bytes, packet->size);
        request->state = DONE;
    } else {
        request->state = MATCHED;
        start_bulk(request);
    }
}

static int find_unexpected(int from, int tag, int context)
{
    for (int i = 0; i < unexpected_count; i++)
        if (is_wanted(&unexpected[i], from, tag, context))
            return i;
    return -1;
}

static void note_asked(unsigned ticket)
{
    for (int i = 0; i < REQUEST_MAX; i++)
        if (requests[i].state == ACTIVE && requests[i].owes && requests[i].packet.ticket == ticket)
            requests[i].asked = true;
}

/* A packet that has come: to its send, to its receive, or aside. Returns false when there is no room for it. */
static bool deliver(const struct packet *packet)
{
    if (packet->kind == PACKET_READY) {
        note_asked(packet->ticket);
        return true;
    }
    for (struct request *request = NULL; (request = next_of(POSTED, request)); )
        if (is_wanted(packet, request->peer, request->tag, request->context)) {
            match(request, packet);
            return true;
        }
    if (unexpected_count == UNEXPECTED_MAX)
        return false;
    unexpected[unexpected_count++] = *packet;
    return true;
}

static void expect_next(void)
{
    if (incoming_operation == NOTHING && !is_stalled) {
        incoming_operation = start_mail_receive(PORT, &incoming, sizeof(incoming));
        if (incoming_operation < 0)
            message_fail("cannot receive", incoming_operation);
    }
}

int message_receive(void *bytes, size_t size, int from, int tag, int context)
{
    struct request *request = make();
    int i = find_unexpected(from, tag, context);

    if (from != MPI_ANY_SOURCE && (from < 0 || from >= message_ranks))
        message_fail("there is no rank", from);
    request->sends = false;
    request->peer = from;
    request->tag = tag;
    request->context = context;
    request->bytes = bytes;
    request->size = size;
    request->state = POSTED;
    if (i >= 0) {
        match(request, &unexpected[i]);
        for (unexpected_count--; i < unexpected_count; i++)
            unexpected[i] = unexpected[i + 1];
    }
    return (int)(request - requests);
}

/* Takes note of an operation that may be done. Returns whether it is. */
static bool is_finished(int *operation, const struct request *request)
{
    long result;

    if (*operation == NOTHING)
        return true;
    result = operation_test(*operation, NULL);
    if (result == -11)
        return false;
    if (result < 0)
        message_fail("a rank has ended that messages go to or come from",
                     request->sends ? request->peer : request->packet.source);
    *operation = NOTHING;
    return true;
}

static void finish(struct request *request, unsigned done)
{
    bool mail_may = request->mail == NOTHING || done >> request->mail & 1;
    bool bulk_may = request->bulk == NOTHING || done >> request->bulk & 1;

    if (mail_may)
        mail_may = is_finished(&request->mail, request);
    if (bulk_may)
        bulk_may = is_finished(&request->bulk, request);
    if (!mail_may || !bulk_may || request->owes)
        return;
    if (!request->sends)
        portals_in_use &= ~(1u << request->packet.ticket % PORTAL_MAX);
    request->state = DONE;
}

static void take_incoming(void)
{
    long result = incoming_operation == NOTHING ? -11 : operation_test(incoming_operation, NULL);

    if (result == -11)
        return;
    incoming_operation = NOTHING;
    is_stalled = !deliver(&incoming);
    expect_next();
}

void message_advance(bool wait)
{
    unsigned all = 0, done = ~0u;

    if (is_stalled)
        is_stalled = !deliver(&incoming);
    expect_next();
    start_sends();
    for (struct request *request = NULL; (request = next_of(MATCHED, request)); )
        start_bulk(request);
    if (incoming_operation != NOTHING)
        all |= 1u << incoming_operation;
    for (int i = 0; i < REQUEST_MAX; i++)
        if (requests[i].state == ACTIVE) {
            all |= requests[i].mail == NOTHING ? 0 : 1u << requests[i].mail;
            all |= requests[i].bulk == NOTHING ? 0 : 1u << requests[i].bulk;
        }
    if (wait) {
        if (!all)
            message_fail("too many messages came before their receives", UNEXPECTED_MAX);
        done = operations_wait(all);
    }
    for (int i = 0; i < REQUEST_MAX; i++)
        if (requests[i].state == ACTIVE)
            finish(&requests[i], done);
    if (incoming_operation != NOTHING && done >> incoming_operation & 1)
        take_incoming();
}

static void tell(const struct request *request, MPI_Status *status)
{
    if (!status)
        return;
    status->MPI_SOURCE = request->packet.source;
    status->MPI_TAG = request->packet.tag;
    status->MPI_ERROR = MPI_SUCCESS;
    status->bytes = request->packet.size;
}

bool message_is_done(int number, MPI_Status *status)
{
    struct request *request = &requests[number];

    if (number < 0 || number >= REQUEST_MAX || request->state == FREE)
        message_fail("there is no request", number);
    if (request->state == ACTIVE)
        finish(request, ~0u); /* often it is done at once */
    if (request->state != DONE)
        return false;
    tell(request, status);
    request->state = FREE;
    return true;
}

void message_wait(int number, MPI_Status *status)
{
    while (!message_is_done(number, status))
        message_advance(true);
}

bool message_find(int from, int tag, int context, MPI_Status *status)
{
    struct request shown;
    int i;

    message_advance(false);
    i = find_unexpected(from, tag, context);
    if (i < 0)
        return false;
    shown.packet = unexpected[i];
    tell(&shown, status);
    return true;
}
