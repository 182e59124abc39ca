/*
 * wherry-linpack: a dense system of equations, factored and solved by LAPACK (dgetrf, dgetrs), the two timed apart.
 *
 *   wherry-linpack [--n N]
 *
 * The matrix has elements of the 46-bit generator of the NAS benchmarks in (-1/2, 1/2), the right side is its row sums,
 * so that the solution is all ones. One JSON line: seconds of factoring and solving (CLOCK_MONOTONIC), the rate
 * for 2/3 n^3 + 2 n^2 operations (Dongarra's count), and the scaled residual |Ax-b| / (eps n |A| |x|) in the maximum
 * norm, which must be below 16 as in HPL. Exit code 1: it is not.
 */
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* LAPACK's Fortran interface: matrices by columns, info > 0: singular. */
void dgetrf_(const int *m, const int *n, double *a, const int *lda, int *pivots, int *info);
void dgetrs_(const char *trans, const int *n, const int *nrhs, const double *a, const int *lda, const int *pivots,
             double *b, const int *ldb, int *info, size_t trans_length);

static const double RESIDUAL_MOST = 16;

struct system {
    int n;
    double *a, *b, *x; /* n*n by columns, n, n */
    int *pivots;
};

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Fills `a`, and `sums` with the sum of each row. */
static void make_matrix(struct system *system, double *sums)
{
    uint64_t state = 314159265;

    for (int row = 0; row < system->n; row++)
        sums[row] = 0;
    for (int column = 0; column < system->n; column++)
        for (int row = 0; row < system->n; row++) {
            double value;

            state = state * 1220703125u & ((UINT64_C(1) << 46) - 1);
            value = ldexp((double)state, -46) - 0.5;
            system->a[(size_t)column * (size_t)system->n + (size_t)row] = value;
            sums[row] += value;
        }
}

/* The matrix was overwritten by its factors: it is made again. */
static double scaled_residual(struct system *system, double *sums)
{
    double residual = 0, matrix_norm = 0, solution_norm = 0;

    make_matrix(system, sums);
    for (int row = 0; row < system->n; row++) {
        double difference = -system->b[row], norm = 0;

        for (int column = 0; column < system->n; column++) {
            double value = system->a[(size_t)column * (size_t)system->n + (size_t)row];

            difference += value * system->x[column];
            norm += fabs(value);
        }
        residual = fmax(residual, fabs(difference));
        matrix_norm = fmax(matrix_norm, norm);
        solution_norm = fmax(solution_norm, fabs(system->x[row]));
    }
    return residual / (DBL_EPSILON * system->n * matrix_norm * solution_norm);
}

static int read_n(int argc, char **argv)
{
    static const struct option options[] = {{"n", required_argument, NULL, 'n'}, {0}};
    int option, n = 3000;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0)
        n = option == 'n' ? atoi(optarg) : 0;
    if (optind != argc || n < 1 || n > 20000) {
        fputs("usage: wherry-linpack [--n N], N from 1 to 20000\n", stderr);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    struct system system = {.n = read_n(argc, argv)};
    size_t n = (size_t)system.n;
    const int one = 1;
    double start, factored, solved, residual, operations;
    double *sums = malloc(n * sizeof *sums);
    int info;

    system.a = malloc(n * n * sizeof *system.a);
    system.b = malloc(n * sizeof *system.b);
    system.x = malloc(n * sizeof *system.x);
    system.pivots = malloc(n * sizeof *system.pivots);
    if (!sums || !system.a || !system.b || !system.x || !system.pivots) {
        fprintf(stderr, "wherry-linpack: no memory for n = %zu\n", n);
        return 1;
    }
    make_matrix(&system, system.b);
    for (size_t row = 0; row < n; row++)
        system.x[row] = system.b[row];

    start = now_seconds();
    dgetrf_(&system.n, &system.n, system.a, &system.n, system.pivots, &info);
    factored = now_seconds();
    if (info) {
        fprintf(stderr, "wherry-linpack: dgetrf returned %d\n", info);
        return 1;
    }
    dgetrs_("N", &system.n, &one, system.a, &system.n, system.pivots, system.x, &system.n, &info, 1);
    solved = now_seconds();

    residual = scaled_residual(&system, sums);
    operations = 2.0 / 3 * pow((double)n, 3) + 2 * pow((double)n, 2);
    printf("{\"n\": %zu, \"factor_seconds\": %.6f, \"solve_seconds\": %.6f, \"flops\": %.6g, \"residual\": %.6g}\n", n,
           factored - start, solved - factored, operations / (solved - start), residual);
    return !(residual < RESIDUAL_MOST);
}
