/*
 * NPB EP, "embarrassingly parallel": Gaussian pairs by the polar method, counted in square annuli.
 *
 * 2^m pairs of random numbers in batches of 2^16, whole batches dealt to ranks in blocks; ranks talk only to add up.
 * Verified by the sums of all X and all Y; batch and order of addition inside a batch do not depend on the ranks.
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>

enum { PAIRS = 1 << 16, ANNULI = 10, PART = 1 << 10 }; /* PART: pairs that stay in the first-level cache */

static const uint64_t seed = 271828183;
static const struct {
    int log_pairs;
    double sum_x, sum_y;
} classes[NPB_CLASSES] = {
    {24, -3.247834652034740e3, -6.958407078382297e3},  {25, -2.863319731645753e3, -6.320053679109499e3},
    {28, -4.295875165629892e3, -1.580732573678431e4},  {30, 4.033815542441498e4, -2.660669192809235e4},
    {32, 4.764367927995374e4, -8.084072988043731e4},
};

struct sums {
    double x, y, counts[ANNULI];
};

/* Splits the work in loops without branches: which pairs lie in the circle cannot be predicted. */
static uint64_t add_part(uint64_t state, struct sums *sums)
{
    static double x[PART + 1], y[PART + 1], t[PART + 1], factor[PART + 1];
    int kept = 0;

    for (int i = 0; i < PART; i++) {
        x[kept] = 2 * npb_random(&state) - 1;
        y[kept] = 2 * npb_random(&state) - 1;
        t[kept] = x[kept] * x[kept] + y[kept] * y[kept];
        kept += t[kept] <= 1;
    }
    for (int i = 0; i < kept; i++)
        factor[i] = log(t[i]);
    for (int i = 0; i < kept; i++)
        factor[i] = sqrt(-2 * factor[i] / t[i]);
    for (int i = 0; i < kept; i++) {
        double gauss_x = x[i] * factor[i], gauss_y = y[i] * factor[i];

        sums->x += gauss_x;
        sums->y += gauss_y;
        sums->counts[(int)fmax(fabs(gauss_x), fabs(gauss_y))] += 1;
    }
    return state;
}

int main(int argc, char **argv)
{
    struct npb_result result = {.operations = "random numbers generated"};
    struct sums mine = {0}, all;
    double pairs = 0;
    int64_t batches, first, end;
    int log_pairs;

    npb_init(&argc, &argv, "EP");
    log_pairs = classes[npb_class_index()].log_pairs;
    batches = INT64_C(1) << (log_pairs - 16);
    npb_require_at_most((int)batches);
    npb_start();
    first = batches * npb_rank() / npb_ranks();
    end = batches * (npb_rank() + 1) / npb_ranks();
    for (int64_t batch = first; batch < end; batch++) {
        uint64_t state = npb_random_skip(seed, 2 * PAIRS * (uint64_t)batch);

        for (int part = 0; part < PAIRS / PART; part++)
            state = add_part(state, &mine);
    }
    MPI_Allreduce(&mine, &all, 2 + ANNULI, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    result.seconds = npb_stop();

    for (int annulus = 0; annulus < ANNULI; annulus++)
        pairs += all.counts[annulus];
    npb_say(" No. of Gaussian pairs: %.0f\n Counts:\n", pairs);
    for (int annulus = 0; annulus < ANNULI; annulus++)
        npb_say(" %d %15.0f\n", annulus, all.counts[annulus]);
    result.verified = npb_close("Sum of X", all.x, classes[npb_class_index()].sum_x, 1e-8);
    result.verified &= npb_close("Sum of Y", all.y, classes[npb_class_index()].sum_y, 1e-8);
    snprintf(result.size, sizeof result.size, "%.0f", ldexp(1, log_pairs + 1));
    result.mop = 1e-6 * ldexp(1, log_pairs + 1);
    return npb_report(&result);
}
