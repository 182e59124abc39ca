/*
 * The part of MPI that programs for tiles have. Its functions behave as the standard requires (MPI 3.1, chapters 3 and
 * 5); only they are declared, so a program that needs more does not compile. One thread of a rank calls MPI.
 *
 * A rank is a tile process: its number and its messages stay with it wherever it moves. An error ends all ranks, as
 * MPI_ERRORS_ARE_FATAL, the standard's default, wants it. So does a rank's 129th request that is not complete, and its
 * 257th message that has come before its receive while nothing else can advance.
 */
#ifndef WHERRY_TILE_MPI_H
#define WHERRY_TILE_MPI_H

#define MPI_SUCCESS 0
#define MPI_ANY_SOURCE (-1)
#define MPI_PROC_NULL (-2)
#define MPI_ANY_TAG (-1)
#define MPI_UNDEFINED (-32766)
#define MPI_MAX_PROCESSOR_NAME 32

typedef int MPI_Comm;
#define MPI_COMM_WORLD 1

typedef int MPI_Datatype;
#define MPI_BYTE 0
#define MPI_CHAR 1
#define MPI_INT 2
#define MPI_LONG 3
#define MPI_DOUBLE 4

typedef int MPI_Op;
#define MPI_SUM 0
#define MPI_PROD 1
#define MPI_MAX 2
#define MPI_MIN 3

typedef int MPI_Request;
#define MPI_REQUEST_NULL (-1)

typedef struct {
    int MPI_SOURCE, MPI_TAG, MPI_ERROR;
    unsigned long bytes;
} MPI_Status;
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)

int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
int MPI_Abort(MPI_Comm comm, int status);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Get_processor_name(char *name, int *length);
double MPI_Wtime(void);

int MPI_Send(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm);
int MPI_Recv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status);
int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request);
int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request);
int MPI_Wait(MPI_Request *request, MPI_Status *status);
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]);
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status);
int MPI_Sendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status *status);
int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status *status);
int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *found, MPI_Status *status);
int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count);

int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Reduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm);
int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int MPI_Gather(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
               int root, MPI_Comm comm);
int MPI_Scatter(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
                int root, MPI_Comm comm);
int MPI_Allgather(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
                  MPI_Comm comm);
int MPI_Alltoall(const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type,
                 MPI_Comm comm);

#endif
