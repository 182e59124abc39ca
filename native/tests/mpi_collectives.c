/*
 * mpi_collectives SEED CASES: makes so many collectives drawn at random, each as the program calls it and by the
 * library's own profiling name, compares all bytes of both, and prints whether any of the first ones was done by
 * levels; for tests/integration/test_native_mpi_collectives.py.
 *
 * Then it makes errors, whose codes and calls of the program's handler are those of the library, and frees a
 * communicator within MPI_Comm_free of another one. With the variable THREADS it wants MPI_THREAD_MULTIPLE.
 */
#include "page.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_types.h"

enum { TYPES = 6, OPERATORS = 5, LARGEST = 40000 };

static uint64_t state; /* the same at all ranks */
static int rank, size;

static unsigned draw(unsigned limit)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (unsigned)(state >> 33) % limit;
}

/* A communicator of some of the ranks, in some order; MPI_COMM_NULL where this rank is not in it. */
static MPI_Comm draw_communicator(void)
{
    int order = (int)draw(3), parts = 1 + (int)draw(2), mine = 0, key = rank;
    MPI_Comm comm;

    for (int i = 0; i < size; i++) {
        int part = (int)draw((unsigned)parts), place = (int)draw(1000);

        if (i == rank) {
            mine = part;
            key = order == 0 ? rank : order == 1 ? -rank : place;
        }
    }
    PMPI_Comm_split(MPI_COMM_WORLD, mine, key, &comm);
    return comm;
}

static void fill(int *memory, size_t ints)
{
    for (size_t i = 0; i < ints; i++)
        memory[i] = (rank * 7919 + (int)i * 31) % 13;
}

/* One collective, by the program's or by the profiling name. */
static int call(int what, bool plain, void *sent, void *got, int count, MPI_Datatype type, MPI_Op operator, int root,
                MPI_Comm comm)
{
    switch (what) {
    case 0:
        return plain ? PMPI_Barrier(comm) : MPI_Barrier(comm);
    case 1:
        return plain ? PMPI_Bcast(got, count, type, root, comm) : MPI_Bcast(got, count, type, root, comm);
    case 2:
        return plain ? PMPI_Reduce(sent, got, count, type, operator, root, comm)
                     : MPI_Reduce(sent, got, count, type, operator, root, comm);
    default:
        return plain ? PMPI_Allreduce(sent, got, count, type, operator, comm)
                     : MPI_Allreduce(sent, got, count, type, operator, comm);
    }
}

static bool one_case(MPI_Comm comm, int most)
{
    static int memory[3][6 * LARGEST];
    const MPI_Datatype types[TYPES] = {MPI_INT, MPI_DOUBLE, MPI_2INT, matrix, gaps, backwards};
    const MPI_Op operators[OPERATORS] = {MPI_SUM, MPI_MAX, MPI_BXOR, MPI_MAXLOC, product};
    int what = (int)draw(4), operation = (int)draw(OPERATORS), type = (int)draw(TYPES), own, root;
    int count = (int)draw(4) ? (int)draw(9) : (int)draw((unsigned)most);
    bool in_place = draw(2);

    PMPI_Comm_rank(comm, &own);
    PMPI_Comm_size(comm, &root);
    root = (int)draw(1 << 20) % root; /* as many draws, whatever the size */
    if (what > 1) /* an operator wants a type of its own */
        type = operation == 4 ? 3 : operation == 3 ? 2 : operation == 2 ? 0 : (int)draw(2);
    for (int turn = 0; turn < 3; turn++)
        fill(memory[turn], 6 * LARGEST);
    if (type == 1)
        for (int turn = 0; turn < 3; turn++)
            for (int i = 0; i < count; i++)
                ((double *)memory[turn])[i] = (rank * 31 + i) % 97; /* whose sums have no rounding */
    for (int turn = 0; turn < 2; turn++) {
        bool here = in_place && (what == 3 || own == root);

        if (call(what, turn, here ? MPI_IN_PLACE : memory[2], memory[turn], count, types[type], operators[operation],
                 root, comm))
            return false;
    }
    return (what == 2 && own != root) || !memcmp(memory[0], memory[1], sizeof memory[0]);
}

static int handled;

static void handle_error(MPI_Comm *comm, int *error, ...)
{
    (void)comm;
    (void)error;
    handled++;
}

/* Whether both forms of a call end with an error of one class, and tell the handler. */
static bool same_error(int what, MPI_Op operator, int root)
{
    double in = 1, out = 0; /* integers are not reduced in order */
    int classes[2];

    for (int plain = 0; plain < 2; plain++) {
        int before = handled;

        PMPI_Error_class(call(what, plain, &in, &out, 1, MPI_DOUBLE, operator, root, MPI_COMM_WORLD), &classes[plain]);
        if (handled == before)
            return false;
    }
    return classes[0] == classes[1] && classes[0] != MPI_SUCCESS;
}

static bool errors_are_those_of_the_library(void)
{
    MPI_Errhandler ours;
    bool same;

    MPI_Comm_create_errhandler(handle_error, &ours);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, ours);
    same = same_error(1, MPI_SUM, size) && same_error(1, MPI_SUM, -1) && same_error(2, MPI_SUM, size) &&
           same_error(2, MPI_SUM, -1) && same_error(3, MPI_OP_NULL, 0);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&ours);
    return same;
}

static int free_another(MPI_Comm comm, int key, void *other, void *extra)
{
    (void)comm;
    (void)key;
    (void)extra;
    return MPI_Comm_free(other);
}

/* Communicators in reverse, one of which may get the handle of a communicator freed within a call. */
static bool freed_within_a_call(void)
{
    MPI_Comm inner, outer, next[2];
    int key, value, right = 0;

    PMPI_Comm_split(MPI_COMM_WORLD, 0, rank, &inner);
    PMPI_Comm_split(MPI_COMM_WORLD, 0, rank, &outer);
    MPI_Barrier(inner);
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_another, &key, NULL);
    MPI_Comm_set_attr(outer, key, &inner);
    MPI_Comm_free(&outer);
    MPI_Comm_free_keyval(&key);
    for (int i = 0; i < 2; i++)
        PMPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &next[i]);
    for (int i = 0; i < 2; i++) {
        value = rank;
        MPI_Bcast(&value, 1, MPI_INT, 0, next[i]);
        right += value == size - 1;
        MPI_Comm_free(&next[i]);
    }
    return right == 2;
}

static bool any_by_levels(void)
{
    const struct anchor *anchor = dlsym(RTLD_DEFAULT, "wherry_mpi_anchor");

    return anchor && ((const struct page *)(uintptr_t)anchor->address)->by_levels;
}

static int compare(uint64_t seed, int cases)
{
    int wrong = 0, all = 0;

    state = seed;
    make_types();
    for (int i = 0; i < cases; i++) {
        uint64_t common = state;
        MPI_Comm comm = i % 5 ? MPI_COMM_WORLD : draw_communicator();

        for (int j = 0; j < 4; j++)
            if (!one_case(comm, i % 8 ? 2000 : LARGEST) && !wrong++)
                fprintf(stderr, "rank %d: wrong in case %d.%d, from %llu\n", rank, i, j, (unsigned long long)common);
        if (comm != MPI_COMM_WORLD)
            MPI_Comm_free(&comm);
    }
    if (!errors_are_those_of_the_library() && ++wrong)
        fprintf(stderr, "rank %d: errors differ\n", rank);
    if (!freed_within_a_call() && ++wrong)
        fprintf(stderr, "rank %d: an object freed within a call is not forgotten\n", rank);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank)
        printf("%d wrong, %s\n", all, any_by_levels() ? "by levels" : "plain");
    MPI_Op_free(&product);
    MPI_Type_free(&matrix);
    MPI_Type_free(&gaps);
    MPI_Type_free(&backwards);
    return all != 0;
}

int main(int count, char **words)
{
    int error;

    MPI_Init_thread(NULL, NULL, getenv("THREADS") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &error);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    error = count == 3 ? compare(strtoull(words[1], NULL, 10), atoi(words[2])) : 2;
    MPI_Finalize();
    return error;
}
