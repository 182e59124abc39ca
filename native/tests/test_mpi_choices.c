/* Tries of both ways, and their outcome, with given times. */
#include "choices.h"

#include "check.h"

#include <time.h>

enum { LARGE = 1 << 20, FAILS = 1, OURS = 0, THEIRS = 1 };

struct mpi mpi;
static uint64_t now = 1000 * 1000; /* ns */
static uint64_t elsewhere[2];       /* the least times of another rank */
static int agreements, failure;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
    return 0;
}

static int allreduce(word mine, word all, word count, word type, word operator, word comm)
{
    (void)type;
    (void)operator;
    (void)comm;
    CHECK(count == 2);
    agreements++;
    for (int way = 0; way < 2; way++) {
        uint64_t own = ((const uint64_t *)mine)[way];

        ((uint64_t *)all)[way] = own > elsewhere[way] ? own : elsewhere[way];
    }
    return failure;
}

/* One call, which takes so long by either way. True when it was by sites. */
static bool call(struct choices *choices, enum operation operation, int64_t bytes, int64_t ours, int64_t theirs)
{
    bool by_sites = choices_by_sites(choices, operation, bytes, 0);

    now += (uint64_t)(by_sites ? ours : theirs);
    choices_end();
    return by_sites;
}

/* The six tries. */
static void try_both(struct choices *choices, enum operation operation, int64_t bytes, int64_t ours, int64_t theirs)
{
    for (int i = 0; i < 6; i++) {
        CHECK(choices_tries(choices, operation, bytes));
        CHECK(call(choices, operation, bytes, ours, theirs) == (i % 2 == 0));
    }
    CHECK(!choices_tries(choices, operation, bytes));
}

static bool chosen(int64_t ours, int64_t theirs)
{
    struct choices *choices = choices_new();
    int before = agreements;
    bool by_sites;

    try_both(choices, BCAST, LARGE, ours, theirs);
    by_sites = call(choices, BCAST, LARGE, ours, theirs);
    for (int i = 0; i < 20; i++) {
        CHECK(!choices_tries(choices, BCAST, LARGE));
        CHECK(call(choices, BCAST, LARGE, 1, 1) == by_sites);
    }
    CHECK(agreements == before + 1);
    choices_free(choices);
    return by_sites;
}

static void test_the_better_way_is_kept(void)
{
    CHECK(chosen(800, 1000));
    CHECK(!chosen(950, 1000)); /* by less than a tenth */
    CHECK(!chosen(1000, 800));
    elsewhere[OURS] = 5000; /* the rank that took longest counts */
    CHECK(!chosen(800, 1000));
    elsewhere[THEIRS] = 9000;
    CHECK(chosen(1000, 800));
    elsewhere[OURS] = elsewhere[THEIRS] = 0;
    failure = FAILS;
    CHECK(chosen(1000, 800));
    failure = 0;
}

static void test_the_least_time_of_each_way_counts(void)
{
    struct choices *choices = choices_new();
    const int64_t ours[] = {90000, 700, 90000}, theirs[] = {1000, 90000, 90000};

    for (int i = 0; i < 3; i++) {
        call(choices, GATHER, LARGE, ours[i], 0);
        call(choices, GATHER, LARGE, 0, theirs[i]);
    }
    CHECK(call(choices, GATHER, LARGE, 1, 1));
    choices_free(choices);
}

static void test_a_clock_that_a_move_sets_back_tells_nothing(void)
{
    struct choices *choices = choices_new();
    const int64_t ours[] = {-500, 2000, 3000}, theirs[] = {1000, -500, 1000};

    for (int i = 0; i < 3; i++) {
        call(choices, SCATTER, LARGE, ours[i], 0);
        call(choices, SCATTER, LARGE, 0, theirs[i]);
    }
    CHECK(!call(choices, SCATTER, LARGE, 1, 1));
    choices_free(choices);
}

static void test_sizes_and_operations_are_apart(void)
{
    struct choices *choices = choices_new();

    try_both(choices, BCAST, LARGE, 800, 1000);
    try_both(choices, BCAST, LARGE * 4, 1000, 800);
    try_both(choices, ALLTOALL, LARGE, 1000, 800);
    CHECK(call(choices, BCAST, LARGE, 1, 1) && call(choices, BCAST, LARGE + 1, 1, 1));
    CHECK(!call(choices, BCAST, LARGE * 4, 1, 1) && !call(choices, ALLTOALL, LARGE, 1, 1));
    CHECK(!choices_tries(choices, ALLGATHER, 64) && call(choices, ALLGATHER, 64, 1000, 1));
    try_both(choices, ALLGATHER, LARGE, 1000, 800);
    choices_free(choices);
}

static void test_after_a_move_what_was_the_library_s_is_tried_again(void)
{
    struct choices *choices = choices_new();

    try_both(choices, BCAST, LARGE, 800, 1000);
    try_both(choices, GATHER, LARGE, 1000, 800);
    CHECK(call(choices, BCAST, LARGE, 1, 1) && !call(choices, GATHER, LARGE, 1, 1));
    choices_again(choices);
    CHECK(!choices_tries(choices, BCAST, LARGE) && call(choices, BCAST, LARGE, 1, 1));
    try_both(choices, GATHER, LARGE, 800, 1000);
    CHECK(call(choices, GATHER, LARGE, 1, 1));
    choices_free(choices);
}

/* A try within which its communicator is freed, or goes by another map: its time is nobody's. */
static void test_a_try_does_not_outlive_its_choices(void)
{
    struct choices *choices = choices_new();

    CHECK(choices_by_sites(choices, ALLGATHER, LARGE, 0));
    now++;
    choices_again(choices);
    choices_end();
    try_both(choices, ALLGATHER, LARGE, 1000, 800);
    CHECK(!call(choices, ALLGATHER, LARGE, 1, 1));

    CHECK(choices_by_sites(choices, BCAST, LARGE, 0));
    now++;
    choices_free(choices);
    choices = choices_new(); /* where the other one was, most likely */
    choices_end();
    try_both(choices, BCAST, LARGE, 1000, 800);
    CHECK(!call(choices, BCAST, LARGE, 1, 1));
    choices_free(choices);
}

int main(void)
{
    mpi.allreduce = allreduce;
    test_the_better_way_is_kept();
    test_the_least_time_of_each_way_counts();
    test_a_clock_that_a_move_sets_back_tells_nothing();
    test_sizes_and_operations_are_apart();
    test_after_a_move_what_was_the_library_s_is_tried_again();
    test_a_try_does_not_outlive_its_choices();
    return 0;
}
