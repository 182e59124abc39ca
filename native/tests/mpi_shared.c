/*
 * mpi_shared SEED ROUNDS [STOP]: messages between ranks with sizes, types, functions and orders drawn at random, alike at
 * all ranks, for test_native_mpi_shared.py, until there is a file STOP. Each double of a message is known. Rank 0 prints
 * how many were wrong at all ranks, and how many went through files in the directory WHERRY_MPI_SHARED at each rank.
 * Built with PROBED, sizes are asked for by MPI_Probe.
 *
 * mpi_shared truncate: receives that are too small have the library's error. mpi_shared many: more messages than there
 * is room for, before any is received.
 */
#include <dirent.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EACH = 4, TAGS = 3, DOUBLE = 8, MOST = 320 * 1024, ROOM = 2 * MOST + 64, MESSAGES_AT = 24 };
enum shape { BYTES, DOUBLES, GAPS, SHAPES };

struct message {
    int from, to, tag, doubles, function;
    enum shape sent, received;
    uint64_t value;
    double *out, *in;
    MPI_Request request;
    int is_done;
};

static int rank, size, wrong;
static uint64_t drawn;
static MPI_Datatype gaps;

/* splitmix64 */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15U;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9U;
    value = (value ^ value >> 27) * 0x94d049bb133111ebU;
    return value ^ value >> 31;
}

static int draw(int below)
{
    drawn = mix(drawn);
    return (int)(drawn >> 33) % below;
}

static double value_of(uint64_t seed, int i)
{
    return (double)(mix(seed + (uint64_t)i) >> 12);
}

static int place_of(int i, enum shape shape)
{
    return shape == GAPS ? 2 * i : i;
}

static MPI_Datatype type_of(enum shape shape)
{
    return shape == GAPS ? gaps : shape == DOUBLES ? MPI_DOUBLE : MPI_BYTE;
}

static int count_of(int doubles, enum shape shape)
{
    return shape == GAPS ? (doubles + 1) / 2 : shape == DOUBLES ? doubles : doubles * DOUBLE;
}

static struct message message(int from, int to)
{
    static const int usual[] = {0, 1, 8, 8191, 8192, 8193, 16384, 40000};
    struct message made = {.from = from, .to = to, .tag = draw(TAGS), .function = draw(6)};

    made.doubles = draw(3) ? usual[draw(8)] : draw(MOST / DOUBLE);
    made.sent = made.doubles % 2 ? draw(2) : draw(SHAPES);
    made.received = draw(SHAPES);
    made.value = drawn;
    made.request = MPI_REQUEST_NULL;
    return made;
}

static void fill(struct message *one)
{
    one->out = malloc(ROOM);
    for (int i = 0; i < one->doubles; i++)
        one->out[place_of(i, one->sent)] = value_of(one->value, i);
}

static void check(struct message *one, const MPI_Status *status)
{
    int elements = -1;

    if (status) {
        MPI_Get_elements(status, type_of(one->received), &elements);
        wrong += elements != (one->received == BYTES ? one->doubles * DOUBLE : one->doubles);
        wrong += status->MPI_SOURCE != one->from || status->MPI_TAG != one->tag;
    }
    for (int i = 0; i < one->doubles; i++)
        if (one->in[place_of(i, one->received)] != value_of(one->value, i)) {
            wrong++;
            break;
        }
    free(one->in);
    one->in = NULL;
    one->is_done = 1;
}

static void post(struct message *one)
{
    MPI_Datatype type = type_of(one->received), copy;
    int more = one->value % 2 ? 0 : 10; /* a receive may have room for more */

    one->in = calloc(1, ROOM);
    MPI_Type_dup(type, &copy);
    MPI_Irecv(one->in, count_of(one->doubles, one->received) + more, one->received == GAPS ? copy : type, one->from,
              one->tag, MPI_COMM_WORLD, &one->request);
    MPI_Type_free(&copy); /* which a program may, before the receive is complete */
}

static void send(struct message *one)
{
    MPI_Datatype type = type_of(one->sent);
    int count = count_of(one->doubles, one->sent);

    fill(one);
    switch (one->function) {
    case 0:
        MPI_Send(one->out, count, type, one->to, one->tag, MPI_COMM_WORLD);
        break;
    case 1:
        MPI_Ssend(one->out, count, type, one->to, one->tag, MPI_COMM_WORLD);
        break;
    case 2:
        MPI_Rsend(one->out, count, type, one->to, one->tag, MPI_COMM_WORLD);
        break;
    case 3:
        MPI_Issend(one->out, count, type, one->to, one->tag, MPI_COMM_WORLD, &one->request);
        break;
    case 4:
        MPI_Irsend(one->out, count, type, one->to, one->tag, MPI_COMM_WORLD, &one->request);
        break;
    default:
        MPI_Isend(one->out, count, type, one->to, one->tag, MPI_COMM_WORLD, &one->request);
    }
}

/* Completes all requests by the function of that number; statuses of each, unless they are ignored. */
static void complete(int function, int number, MPI_Request *requests, MPI_Status *statuses, int ignored)
{
    int flag, index, outcount, *indices = malloc((size_t)number * sizeof *indices), left = number;
    MPI_Status *some = malloc((size_t)number * sizeof *some), one;

    switch (function) {
    case 0:
        MPI_Waitall(number, requests, ignored ? MPI_STATUSES_IGNORE : statuses);
        break;
    case 1:
        for (int i = number - 1; i >= 0; i--)
            MPI_Wait(&requests[i], ignored ? MPI_STATUS_IGNORE : &statuses[i]);
        break;
    case 2:
        for (int i = 0; i < number; i++)
            for (flag = 0; !flag;)
                MPI_Test(&requests[i], &flag, ignored ? MPI_STATUS_IGNORE : &statuses[i]);
        break;
    case 3:
        for (flag = 0; !flag;)
            MPI_Testall(number, requests, &flag, ignored ? MPI_STATUSES_IGNORE : statuses);
        break;
    case 4:
        while (left) {
            MPI_Waitany(number, requests, &index, ignored ? MPI_STATUS_IGNORE : &one);
            if (index == MPI_UNDEFINED)
                break;
            if (!ignored)
                statuses[index] = one;
            left--;
        }
        break;
    case 5:
        while (left) {
            MPI_Testany(number, requests, &index, &flag, ignored ? MPI_STATUS_IGNORE : &one);
            if (!flag)
                continue;
            if (index == MPI_UNDEFINED)
                break;
            if (!ignored)
                statuses[index] = one;
            left--;
        }
        break;
    default:
        while (left) {
            (function == 6 ? MPI_Waitsome : MPI_Testsome)(number, requests, &outcount, indices,
                                                          ignored ? MPI_STATUSES_IGNORE : some);
            if (outcount == MPI_UNDEFINED)
                break;
            for (int i = 0; i < outcount && !ignored; i++)
                statuses[indices[i]] = some[i];
            left -= outcount;
        }
    }
    free(some);
    free(indices);
}

/* All receives are posted, then all is sent, and a barrier may come before anybody looks at the messages. */
static void posted(void)
{
    int number = EACH * size, mine = 0, which[EACH * 16], meet = draw(2), function = draw(8), ignored = draw(2);
    struct message *all = calloc((size_t)number, sizeof *all);
    MPI_Request *requests = malloc((size_t)number * sizeof(MPI_Request));
    MPI_Status *statuses = malloc((size_t)number * sizeof *statuses);

    for (int i = 0; i < number; i++) {
        int from = draw(size);

        all[i] = message(from, (from + 1 + draw(size - 1)) % size);
        if (all[i].to == rank)
            post(&all[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < number; i++)
        if (all[i].from == rank)
            send(&all[i]);
    if (meet)
        MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < number; i++)
        if (all[i].to == rank || all[i].from == rank) {
            which[mine] = i;
            requests[mine++] = all[i].request;
        }
    complete(function, mine, requests, statuses, ignored);
    for (int i = 0; i < mine; i++)
        if (all[which[i]].to == rank)
            check(&all[which[i]], ignored ? NULL : &statuses[i]);
        else
            free(all[which[i]].out);
    free(statuses);
    free(requests);
    free(all);
}

/* Each to the next one, by one call. */
static void around(void)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size, ignored = draw(2);
    struct message out = {0}, in = {0};
    MPI_Status status;

    for (int i = 0; i < size; i++) {
        struct message one = message(i, (i + 1) % size);

        if (i == rank)
            out = one;
        if (i == from)
            in = one;
    }
    fill(&out);
    in.in = calloc(1, ROOM);
    MPI_Sendrecv(out.out, count_of(out.doubles, out.sent), type_of(out.sent), to, out.tag, in.in,
                 count_of(in.doubles, in.received), type_of(in.received), from, in.tag, MPI_COMM_WORLD,
                 ignored ? MPI_STATUS_IGNORE : &status);
    check(&in, ignored ? NULL : &status);
    free(out.out);
}

/* The first message that may come now with this source and tag. */
static struct message *next_of(struct message *all, int number, int from, int tag)
{
    for (int i = 0; i < number; i++)
        if (all[i].to == rank && all[i].from == from && all[i].tag == tag && !all[i].is_done)
            return &all[i];
    return NULL;
}

/* Receives that take any message, of a size unknown to them. */
static void any(void)
{
    int number = EACH * size, expected = 0;
#ifdef PROBED
    int count;
#endif
    struct message *all = calloc((size_t)number, sizeof *all), *one;
    MPI_Request own[EACH * 16];
    MPI_Status status;
    int mine = 0;

    for (int i = 0; i < number; i++) {
        int from = draw(size);

        all[i] = message(from, (from + 1 + draw(size - 1)) % size);
        all[i].function = 5;
        all[i].received = BYTES;
        expected += all[i].to == rank;
    }
    for (int i = 0; i < number; i++)
        if (all[i].from == rank) {
            send(&all[i]);
            own[mine++] = all[i].request;
        }
    for (; expected; expected--) {
        char *in = calloc(1, ROOM);

#ifdef PROBED
        MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        MPI_Recv(in, count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
#else
        MPI_Recv(in, ROOM, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
#endif
        one = next_of(all, number, status.MPI_SOURCE, status.MPI_TAG);
        if (!one) {
            wrong++;
            free(in);
            continue;
        }
        one->in = (double *)in;
        check(one, &status);
    }
    MPI_Waitall(mine, own, MPI_STATUSES_IGNORE);
    for (int i = 0; i < number; i++)
        if (all[i].from == rank)
            free(all[i].out);
    free(all);
}

/* Requests that are made once. */
static void persistent(void)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size, doubles = 8000 + draw(10000), function = draw(8);
    enum shape shape = draw(2) ? DOUBLES : GAPS;
    struct message in = {.from = from, .tag = 1, .doubles = doubles, .received = shape}, out = {0};
    MPI_Request requests[2];
    MPI_Status statuses[2];
    double *memory = calloc(1, ROOM);

    MPI_Barrier(MPI_COMM_WORLD); /* the receives before take any message */
    out.out = malloc(ROOM);
    MPI_Recv_init(memory, count_of(doubles, shape), type_of(shape), from, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(out.out, doubles, MPI_DOUBLE, to, 1, MPI_COMM_WORLD, &requests[1]);
    for (int i = 0; i < 3; i++) {
        in.value = (uint64_t)(from + 100 * i);
        for (int k = 0; k < doubles; k++)
            out.out[k] = value_of((uint64_t)(rank + 100 * i), k);
        if (i == 1) { /* this send is not persistent: it goes by memory */
            MPI_Start(&requests[0]);
            MPI_Send(out.out, doubles, MPI_DOUBLE, to, 1, MPI_COMM_WORLD);
            MPI_Wait(&requests[0], &statuses[0]);
        } else {
            MPI_Startall(2, requests);
            complete(function, 2, requests, statuses, 0);
        }
        in.in = malloc(ROOM);
        memcpy(in.in, memory, ROOM);
        check(&in, &statuses[0]);
    }
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE); /* which is not active */
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    free(memory);
    free(out.out);
}

/* Messages that were put into files at the host where this rank is, as their receiver. */
static long in_files(void)
{
    const char *host = getenv("WHERRY_MPI_SHARED");
    char path[512], name[1024];
    struct dirent *entry;
    uint64_t messages;
    long sum = 0;
    DIR *listed;

    snprintf(path, sizeof path, "%s/%d", host ? host : "", rank);
    listed = opendir(path);
    while (listed && (entry = readdir(listed))) {
        FILE *file;

        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        file = *entry->d_name == '.' ? NULL : fopen(name, "r");
        if (file && !fseek(file, MESSAGES_AT, SEEK_SET) && fread(&messages, sizeof messages, 1, file) == 1)
            sum += (long)messages;
        if (file)
            fclose(file);
    }
    if (listed)
        closedir(listed);
    return sum;
}

static void truncated(void)
{
    enum { SENT = 128 * 1024, SMALL = 100 * 1024 };
    char *buffer = calloc(1, SENT);
    int error, class, after = 0;
    MPI_Request request;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 2; i++) {
        if (rank == 0) {
            MPI_Send(buffer, SENT, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        } else if (rank == 1) {
            if (i)
                error = MPI_Recv(buffer, SMALL, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            else {
                MPI_Irecv(buffer, SMALL, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
                error = MPI_Wait(&request, MPI_STATUS_IGNORE);
            }
            MPI_Error_class(error, &class);
            wrong += class != MPI_ERR_TRUNCATE;
        }
    }
    if (rank == 0)
        MPI_Send(&rank, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else if (rank == 1)
        MPI_Recv(&after, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    free(buffer);
}

/* The receiver looks at none before all were sent, and it has them in another order then. */
static void many(void)
{
    enum { MESSAGES = 40, DOUBLES = 16384 };
    MPI_Request requests[MESSAGES];
    double *memory = calloc(MESSAGES * (size_t)DOUBLES, DOUBLE);

    for (int i = 0; i < MESSAGES && rank < 2; i++) {
        double *one = memory + i * (size_t)DOUBLES;

        for (int k = 0; k < DOUBLES && rank == 0; k++)
            one[k] = value_of((uint64_t)i, k);
        if (rank == 0)
            MPI_Isend(one, DOUBLES, MPI_DOUBLE, 1, i, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = MESSAGES - 1; i >= 0 && rank == 1; i--)
        MPI_Irecv(memory + i * (size_t)DOUBLES, DOUBLES, MPI_DOUBLE, 0, i, MPI_COMM_WORLD, &requests[i]);
    if (rank < 2)
        MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < MESSAGES && rank == 1; i++)
        for (int k = 0; k < DOUBLES; k++)
            wrong += memory[i * (size_t)DOUBLES + (size_t)k] != value_of((uint64_t)i, k);
    free(memory);
}

/* Rank 0 decides, as all have to end in the same round. */
static int goes_on(const char *stop)
{
    int on = !stop || access(stop, F_OK);

    if (stop)
        MPI_Bcast(&on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return on;
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 0, all = 0;
    const char *what = argc > 1 ? argv[1] : "";
    long own, files[64] = {0};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Type_vector(2, 1, 2, MPI_DOUBLE, &gaps); /* two of three doubles, and a gap behind them */
    MPI_Type_create_resized(gaps, 0, 4 * DOUBLE, &gaps);
    MPI_Type_commit(&gaps);
    MPI_Barrier(MPI_COMM_WORLD); /* all receive by memory then */
    if (!strcmp(what, "truncate"))
        truncated();
    else if (!strcmp(what, "many"))
        many();
    else {
        drawn = mix((uint64_t)atoll(what));
        for (int i = 0; i < rounds && goes_on(argc > 3 ? argv[3] : NULL); i++) {
            posted();
            around();
            any();
            persistent();
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    own = in_files();
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Gather(&own, 1, MPI_LONG, files, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%d wrong, files", all);
        for (int i = 0; i < size; i++)
            printf(" %ld", files[i]);
        printf("\n");
    }
    MPI_Finalize();
    return 0;
}
