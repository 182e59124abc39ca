/* Messages, portals, syncs and the name server, for programs; see tile.h. */
#include "tile.h"

int mail_send(int process, int port, const void *bytes, size_t size)
{
    return (int)kernel_call(CALL_MAIL_SEND, (long)process, (long)port, bytes, size);
}

int mail_receive(int port, void *bytes, size_t room, struct mail_from *from)
{
    return (int)kernel_call(CALL_MAIL_RECEIVE, (long)port, bytes, room, from);
}

int start_mail_send(int process, int port, const void *bytes, size_t size)
{
    return (int)kernel_call(CALL_START, (long)START_MAIL_SEND, (long)process, (long)port, bytes, size);
}

int start_mail_receive(int port, void *bytes, size_t room)
{
    return (int)kernel_call(CALL_START, (long)START_MAIL_RECEIVE, 0l, (long)port, bytes, room);
}

int start_portal_send(int process, int port, int ticket, const void *bytes, size_t size)
{
    return (int)kernel_call(CALL_START, (long)START_PORTAL_SEND, (long)process, (long)port | (long)ticket << 8, bytes,
                            size);
}

int start_portal_receive(int port, void *bytes, size_t size)
{
    return (int)kernel_call(CALL_START, (long)START_PORTAL_RECEIVE, 0l, (long)port, bytes, size);
}

int portal_allow(int port, int process, int ticket, size_t size)
{
    return (int)kernel_call(CALL_ALLOW, (long)port, (long)process, (long)ticket, size);
}

long operation_test(int operation, struct mail_from *from)
{
    return kernel_call(CALL_FINISH, (long)operation, from);
}

unsigned operations_wait(unsigned operations)
{
    long done = kernel_call(CALL_WAIT, (unsigned long)operations);

    return done < 0 ? 0 : (unsigned)done;
}

long operation_wait(int operation, struct mail_from *from)
{
    operations_wait(1u << operation);
    return operation_test(operation, from);
}

long portal_send(int process, int port, int ticket, const void *bytes, size_t size)
{
    int operation = start_portal_send(process, port, ticket, bytes, size);

    return operation < 0 ? operation : operation_wait(operation, NULL);
}

long portal_receive(int port, void *bytes, size_t size)
{
    int operation = start_portal_receive(port, bytes, size);

    return operation < 0 ? operation : operation_wait(operation, NULL);
}

int sync_signal(int sync, unsigned processes)
{
    return (int)kernel_call(CALL_SYNC_SIGNAL, (long)sync, (unsigned long)processes);
}

int sync_wait(int sync, unsigned processes)
{
    return (int)kernel_call(CALL_SYNC_WAIT, (long)sync, (unsigned long)processes);
}

/* One question at a time: the answers come to one port. */
static struct mutex asking = MUTEX_INIT;

static int ask(int what, const char *name, int port, struct server_answer *answer)
{
    struct server_request request = {.what = (unsigned char)what, .reply = SERVER_REPLY_PORT, .number = port};
    struct server_answer here;

    if (strlen(name) >= sizeof(request.name))
        return -36; /* ENAMETOOLONG */
    memcpy(request.name, name, strlen(name));
    if (!answer)
        answer = &here;
    mutex_lock(&asking);
    mail_send(CONSOLE_PROCESS, SERVER_PORT, &request, sizeof(request));
    mail_receive(SERVER_REPLY_PORT, answer, sizeof(*answer), NULL);
    mutex_unlock(&asking);
    return answer->result;
}

int name_link(const char *name, int port)
{
    return ask(SERVER_LINK, name, port, NULL);
}

int name_unlink(const char *name)
{
    return ask(SERVER_UNLINK, name, 0, NULL);
}

int name_find(const char *name, int *port, bool wait)
{
    struct server_answer answer;
    int result = ask(wait ? SERVER_AWAIT : SERVER_FIND, name, 0, &answer);

    if (port)
        *port = answer.port;
    return result < 0 ? result : answer.process;
}

void abort_ranks(int status)
{
    struct server_request request = {.what = SERVER_ABORT, .number = status};

    mail_send(CONSOLE_PROCESS, SERVER_PORT, &request, sizeof(request));
    process_exit(status);
}
