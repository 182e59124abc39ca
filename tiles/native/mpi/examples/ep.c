/* ep [BITS]: 2^BITS pairs of pseudo-random numbers, made normal by the polar method, counted by rings, as in NPB EP. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define RINGS 10
#define MASK ((1ul << 46) - 1)
#define MULTIPLIER 1220703125ul /* 5^13 */
#define SEED 271828183ul

/* a * b mod 2^46 */
static unsigned long times(unsigned long a, unsigned long b)
{
    return a * b & MASK;
}

static unsigned long power(unsigned long base, unsigned long exponent)
{
    unsigned long result = 1;

    for (; exponent; exponent >>= 1, base = times(base, base))
        if (exponent & 1)
            result = times(result, base);
    return result;
}

int main(int argc, char **argv)
{
    long pairs = 1l << (argc > 1 ? atoi(argv[1]) : 16), first, last, counts[RINGS] = {0}, all[RINGS];
    double sums[2] = {0, 0}, total[2];
    unsigned long state;
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    first = pairs * rank / ranks;
    last = pairs * (rank + 1) / ranks;
    state = times(SEED, power(MULTIPLIER, 2ul * (unsigned long)first));
    for (long pair = first; pair < last; pair++) {
        double x, y, t, factor, larger;

        state = times(state, MULTIPLIER);
        x = 2.0 * (double)state / (double)(MASK + 1) - 1;
        state = times(state, MULTIPLIER);
        y = 2.0 * (double)state / (double)(MASK + 1) - 1;
        t = x * x + y * y;
        if (t > 1 || t == 0)
            continue;
        factor = sqrt(-2 * log(t) / t);
        x *= factor;
        y *= factor;
        sums[0] += x;
        sums[1] += y;
        larger = fabs(x) > fabs(y) ? fabs(x) : fabs(y);
        if (larger < RINGS)
            counts[(int)larger]++;
    }
    MPI_Reduce(counts, all, RINGS, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Allreduce(sums, total, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("sums %.6f %.6f\n", total[0], total[1]);
        for (int ring = 0; ring < RINGS; ring++)
            printf("%d %ld\n", ring, all[ring]);
    }
    MPI_Finalize();
    return 0;
}
