/*
 * NPB IS: ranks integer keys ten times (how many keys are smaller), as a parallel bucket sort does.
 *
 * Every rank counts its keys by bucket, the counts are added up over all ranks, runs of whole buckets with about the
 * same number of keys go to each rank, and the rank counts its keys one by one. Each ranking is verified by the ranks
 * of five keys; after the last, the sorted keys are checked in full. Exact: there is no tolerance.
 */
#include "npb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS = 10, TESTS = 5, MOST_BUCKETS = 1024, MOST_RANKS = 256 };

static const struct problem {
    int log_keys, log_max_key, buckets;
    int64_t indices[TESTS], starts[TESTS]; /* in iteration i, key indices[t] has rank starts[t] + signs[t] * i: */
    int signs[TESTS];                      /* the published ranks, with their shift of the iteration added */
} problems[NPB_CLASSES] = {
    {16, 11, 512, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, {1, 1, 1, -1, -1}},
    {20, 16, 1024, {357773, 934767, 875723, 898999, 404505}, {1247, 11696, 1039987, 1043896, 1048018},
     {1, 1, -1, -1, -1}},
    {23, 19, 1024, {2112377, 662041, 5336171, 3642833, 4250760}, {103, 17522, 123927, 8288933, 8388265},
     {1, 1, 1, -1, -1}},
    {25, 21, 1024, {41869, 812306, 5102857, 18232239, 26860214}, {33422937, 10244, 59149, 33135281, 99},
     {-1, 1, 1, -1, 1}},
    {27, 23, 1024, {44172927, 72999161, 74326391, 129606274, 21736814}, {61147, 882988, 266290, 133997595, 133525895},
     {1, 1, 1, -1, -1}},
};

struct sorter {
    const struct problem *problem;
    int max_key, shift;                  /* key >> shift is its bucket */
    int64_t first_key;                   /* global index of this rank's first key */
    int key_count, capacity, received;   /* keys made here; room for keys of my buckets; how many there are */
    int32_t *keys, *grouped, *mine;      /* as made; by bucket; those of my buckets */
    int first_bucket, end_bucket;        /* mine */
    int64_t smaller;                     /* keys in the buckets before mine, over all ranks */
    int32_t *smaller_or_equal;           /* [key - first_bucket's first key]: my keys up to it */
    int failures;
};

static void make_keys(struct sorter *sorter)
{
    uint64_t state = npb_random_skip(NPB_SEED, 4 * (uint64_t)sorter->first_key);
    double quarter = sorter->max_key / 4;

    for (int i = 0; i < sorter->key_count; i++) {
        double sum = npb_random(&state);

        for (int k = 1; k < 4; k++)
            sum += npb_random(&state);
        sorter->keys[i] = (int32_t)(quarter * sum);
    }
}

static void set_key(struct sorter *sorter, int64_t index, int32_t key)
{
    index -= sorter->first_key;
    if (index >= 0 && index < sorter->key_count)
        sorter->keys[index] = key;
}

/* Groups the keys by bucket; counts are this rank's. */
static void group_keys(struct sorter *sorter, int32_t *restrict counts)
{
    int32_t *restrict grouped = sorter->grouped;
    const int32_t *restrict keys = sorter->keys;
    int shift = sorter->shift, count = sorter->key_count;
    size_t next[MOST_BUCKETS], at = 0; /* as wide as an address: nothing is extended in the loop */

    for (int i = 0; i < count; i++)
        counts[keys[i] >> shift]++;
    for (int bucket = 0; bucket < sorter->problem->buckets; bucket++) {
        next[bucket] = at;
        at += (size_t)counts[bucket];
    }
    for (int i = 0; i < count; i++) {
        uint32_t key = (uint32_t)keys[i];

        grouped[next[key >> shift]++] = (int32_t)key;
    }
}

/* Deals runs of buckets to the ranks, so that rank r's end where (r + 1) / ranks of all keys are reached. */
static void deal_buckets(struct sorter *sorter, const int32_t *counts, const int32_t *all, int *send_counts)
{
    int64_t keys = INT64_C(1) << sorter->problem->log_keys, seen = 0;
    int rank = 0;

    sorter->first_bucket = npb_rank() ? sorter->problem->buckets : 0; /* none, unless dealt below */
    sorter->end_bucket = sorter->problem->buckets;
    sorter->smaller = npb_rank() ? keys : 0;
    sorter->received = 0;
    for (int bucket = 0; bucket < sorter->problem->buckets; bucket++) {
        send_counts[rank] += counts[bucket];
        sorter->received += rank == npb_rank() ? all[bucket] : 0;
        seen += all[bucket];
        while (rank + 1 < npb_ranks() && seen * npb_ranks() >= keys * (rank + 1)) {
            if (rank == npb_rank())
                sorter->end_bucket = bucket + 1;
            if (++rank == npb_rank()) {
                sorter->first_bucket = bucket + 1;
                sorter->smaller = seen;
            }
        }
    }
}

static void send_keys(struct sorter *sorter, const int *send_counts)
{
    int receive_counts[MOST_RANKS], send_places[MOST_RANKS], receive_places[MOST_RANKS], sent = 0, received = 0;

    if (npb_ranks() == 1)
        return; /* grouped and mine are one */
    MPI_Alltoall(send_counts, 1, MPI_INT, receive_counts, 1, MPI_INT, MPI_COMM_WORLD);
    for (int rank = 0; rank < npb_ranks(); rank++) {
        send_places[rank] = sent;
        receive_places[rank] = received;
        sent += send_counts[rank];
        received += receive_counts[rank];
    }
    if (received != sorter->received || received > sorter->capacity) {
        fprintf(stderr, "npb: rank %d was sent %d keys, has %d in its buckets and room for %d\n", npb_rank(), received,
                sorter->received, sorter->capacity);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Alltoallv(sorter->grouped, send_counts, send_places, MPI_INT32_T, sorter->mine, receive_counts, receive_places,
                  MPI_INT32_T, MPI_COMM_WORLD);
}

/*
 * From four places far apart at once: neighbours are of one bucket, so their counts lie close together, and an addition
 * to a count just written would have to wait for it.
 */
static void count_keys(struct sorter *sorter)
{
    int32_t lowest = sorter->first_bucket << sorter->shift, sum = 0;
    int range = (sorter->end_bucket - sorter->first_bucket) << sorter->shift;
    int32_t *restrict counts = sorter->smaller_or_equal;
    const int32_t *restrict keys = sorter->mine;
    int quarter = sorter->received / 4;

    memset(counts, 0, (size_t)range * sizeof *counts);
    for (int i = 0; i < quarter; i++) {
        counts[keys[i] - lowest]++;
        counts[keys[quarter + i] - lowest]++;
        counts[keys[2 * quarter + i] - lowest]++;
        counts[keys[3 * quarter + i] - lowest]++;
    }
    for (int i = 4 * quarter; i < sorter->received; i++)
        counts[keys[i] - lowest]++;
    for (int key = 0; key < range; key++)
        counts[key] = sum += counts[key];
}

/* The rank that has a test key's bucket can count how many keys of all are smaller. */
static void verify_tests(struct sorter *sorter, const int32_t *tests, int iteration)
{
    const struct problem *problem = sorter->problem;
    int32_t lowest = sorter->first_bucket << sorter->shift;

    for (int test = 0; test < TESTS; test++) {
        int32_t key = tests[test];
        int64_t right = problem->starts[test] + problem->signs[test] * iteration, got;

        if (key >> sorter->shift < sorter->first_bucket || key >> sorter->shift >= sorter->end_bucket)
            continue;
        got = sorter->smaller + (key > lowest ? sorter->smaller_or_equal[key - lowest - 1] : 0);
        if (got != right && sorter->failures++ == 0)
            fprintf(stderr, "npb: IS iteration %d: key %d has rank %lld, not %lld\n", iteration, key, (long long)got,
                    (long long)right);
    }
}

static void rank_keys(struct sorter *sorter, int iteration)
{
    int32_t counts[MOST_BUCKETS + TESTS] = {0}, all[MOST_BUCKETS + TESTS];
    int send_counts[MOST_RANKS] = {0}, buckets = sorter->problem->buckets;

    set_key(sorter, iteration, iteration);
    set_key(sorter, iteration + ITERATIONS, sorter->max_key - iteration);
    for (int test = 0; test < TESTS; test++) { /* the test keys travel with the counts: others add 0 */
        int64_t index = sorter->problem->indices[test] - sorter->first_key;

        if (index >= 0 && index < sorter->key_count)
            counts[buckets + test] = sorter->keys[index];
    }
    group_keys(sorter, counts);
    MPI_Allreduce(counts, all, buckets + TESTS, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
    deal_buckets(sorter, counts, all, send_counts);
    send_keys(sorter, send_counts);
    count_keys(sorter);
    verify_tests(sorter, all + buckets, iteration);
}

/* Puts every key of mine to the place of its rank and checks that they rise, here and from one rank to the next. */
static void verify_order(struct sorter *sorter)
{
    int32_t lowest = sorter->first_bucket << sorter->shift, *sorted, *ends;
    int64_t mine = sorter->received, all;
    int32_t both[2] = {INT32_MAX, -1}; /* my smallest and largest key; INT32_MAX: no keys */

    sorted = npb_allocate((size_t)sorter->received, sizeof *sorted);
    for (int i = 0; i < sorter->received; i++)
        sorted[--sorter->smaller_or_equal[sorter->mine[i] - lowest]] = sorter->mine[i];
    for (int i = 1; i < sorter->received; i++)
        sorter->failures += sorted[i - 1] > sorted[i];
    if (sorter->received) {
        both[0] = sorted[0];
        both[1] = sorted[sorter->received - 1];
    }
    ends = npb_allocate(2 * (size_t)npb_ranks(), sizeof *ends);
    MPI_Allgather(both, 2, MPI_INT32_T, ends, 2, MPI_INT32_T, MPI_COMM_WORLD);
    for (int rank = 0; rank < npb_rank(); rank++)
        sorter->failures += ends[2 * rank + 1] > both[0];
    MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    sorter->failures += all != INT64_C(1) << sorter->problem->log_keys;
    free(sorted);
    free(ends);
}

static void set_up(struct sorter *sorter)
{
    const struct problem *problem = &problems[npb_class_index()];

    sorter->problem = problem;
    sorter->max_key = 1 << problem->log_max_key;
    sorter->shift = problem->log_max_key - __builtin_ctz((unsigned)problem->buckets);
    sorter->key_count = (int)((INT64_C(1) << problem->log_keys) / npb_ranks());
    sorter->first_key = (int64_t)sorter->key_count * npb_rank();
    /* My share and one bucket: the fullest have 8/3 of the mean, for sums of four equal distributions. */
    sorter->capacity = sorter->key_count + 3 * ((1 << problem->log_keys) / problem->buckets);
    npb_require_memory(4.0 * (2.0 * sorter->key_count + 2.0 * sorter->capacity + sorter->max_key));
    sorter->keys = npb_allocate((size_t)sorter->key_count, sizeof(int32_t));
    sorter->grouped = npb_allocate((size_t)sorter->key_count, sizeof(int32_t));
    sorter->mine = npb_ranks() == 1 ? sorter->grouped : npb_allocate((size_t)sorter->capacity, sizeof(int32_t));
    sorter->smaller_or_equal = npb_allocate((size_t)sorter->max_key, sizeof(int32_t));
    make_keys(sorter);
}

static void tear_down(struct sorter *sorter)
{
    if (sorter->mine != sorter->grouped)
        free(sorter->mine);
    free(sorter->keys);
    free(sorter->grouped);
    free(sorter->smaller_or_equal);
}

int main(int argc, char **argv)
{
    struct npb_result result = {.operations = "keys ranked", .iterations = ITERATIONS};
    struct sorter sorter = {0};
    double keys;

    npb_init(&argc, &argv, "IS");
    npb_require_power_of_two(MOST_RANKS);
    set_up(&sorter);
    rank_keys(&sorter, 1);

    npb_start();
    npb_say("   iteration\n");
    for (int iteration = 1; iteration <= ITERATIONS; iteration++) {
        npb_say("        %d\n", iteration);
        rank_keys(&sorter, iteration);
    }
    result.seconds = npb_stop();

    verify_order(&sorter);
    tear_down(&sorter);
    result.verified = sorter.failures == 0;
    keys = (double)(INT64_C(1) << sorter.problem->log_keys);
    snprintf(result.size, sizeof result.size, "%.0f", keys);
    result.mop = 1e-6 * ITERATIONS * keys;
    return npb_report(&result);
}
