/* MPI's calls about ranks and single messages; see mpi.h. The collectives are in collectives.c. */
#include "point_to_point.h"

static void check(MPI_Comm comm)
{
    if (comm != MPI_COMM_WORLD)
        message_fail("there is no communicator", comm);
}

int MPI_Init(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    message_begin();
    return MPI_Barrier(MPI_COMM_WORLD);
}

int MPI_Finalize(void)
{
    return MPI_Barrier(MPI_COMM_WORLD); /* so that nobody ends while others still send to it */
}

int MPI_Abort(MPI_Comm comm, int status)
{
    check(comm);
    abort_ranks(status);
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    check(comm);
    *rank = message_rank;
    return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int *size)
{
    check(comm);
    *size = message_ranks;
    return MPI_SUCCESS;
}

int MPI_Get_processor_name(char *name, int *length)
{
    int tile = info(INFO_TILE);

    memcpy(name, "tile ", 5);
    *length = 5;
    if (tile >= 10)
        name[(*length)++] = (char)('0' + tile / 10);
    name[(*length)++] = (char)('0' + tile % 10);
    name[*length] = 0;
    return MPI_SUCCESS;
}

double MPI_Wtime(void)
{
    return (double)clock_ns() / 1e9;
}

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    check(comm);
    *request = MPI_REQUEST_NULL;
    if (to != MPI_PROC_NULL)
        *request = message_send(buffer, message_size(count, type), to, tag, CONTEXT_USER);
    return MPI_SUCCESS;
}

int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    check(comm);
    *request = MPI_REQUEST_NULL;
    if (from != MPI_PROC_NULL)
        *request = message_receive(buffer, message_size(count, type), from, tag, CONTEXT_USER);
    return MPI_SUCCESS;
}

static void tell_nothing(MPI_Status *status, int source)
{
    if (status)
        *status = (MPI_Status){.MPI_SOURCE = source, .MPI_TAG = MPI_ANY_TAG};
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    if (*request == MPI_REQUEST_NULL)
        tell_nothing(status, MPI_ANY_SOURCE);
    else
        message_wait(*request, status);
    *request = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    for (int i = 0; i < count; i++)
        MPI_Wait(&requests[i], statuses ? &statuses[i] : MPI_STATUS_IGNORE);
    return MPI_SUCCESS;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    *done = 1;
    if (*request == MPI_REQUEST_NULL) {
        tell_nothing(status, MPI_ANY_SOURCE);
        return MPI_SUCCESS;
    }
    message_advance(false);
    *done = message_is_done(*request, status);
    if (*done)
        *request = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
}

int MPI_Send(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    MPI_Request request;

    MPI_Isend(buffer, count, type, to, tag, comm, &request);
    return MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int MPI_Recv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status)
{
    MPI_Request request;

    MPI_Irecv(buffer, count, type, from, tag, comm, &request);
    MPI_Wait(&request, status);
    if (from == MPI_PROC_NULL)
        tell_nothing(status, MPI_PROC_NULL);
    return MPI_SUCCESS;
}

int MPI_Sendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status *status)
{
    MPI_Request receive, send;

    MPI_Irecv(in, in_count, in_type, from, in_tag, comm, &receive);
    MPI_Isend(out, out_count, out_type, to, out_tag, comm, &send);
    MPI_Wait(&receive, status);
    if (from == MPI_PROC_NULL)
        tell_nothing(status, MPI_PROC_NULL);
    return MPI_Wait(&send, MPI_STATUS_IGNORE);
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *found, MPI_Status *status)
{
    check(comm);
    if (from == MPI_PROC_NULL)
        tell_nothing(status, MPI_PROC_NULL);
    *found = from == MPI_PROC_NULL || message_find(from, tag, CONTEXT_USER, status);
    return MPI_SUCCESS;
}

int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status *status)
{
    int found;

    for (MPI_Iprobe(from, tag, comm, &found, status); !found; MPI_Iprobe(from, tag, comm, &found, status))
        message_advance(true);
    return MPI_SUCCESS;
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count)
{
    size_t size = message_size(1, type);

    *count = status->bytes % size ? MPI_UNDEFINED : (int)(status->bytes / size);
    return MPI_SUCCESS;
}
