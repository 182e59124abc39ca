/*
 * NPB BT, a pseudo-application: the equations in cfd.h by alternating directions, each a set of block tridiagonal
 * systems with 5x5 blocks. Few large messages: 30 doubles forwards and 5 backwards for every line.
 *
 * The system of a line at point i, A and N being the convective and viscous Jacobians at the point in brackets:
 *
 *      lower x(i-1) + diagonal x(i) + upper x(i+1) = r(i),    second = dt / distance^2, central = dt / (2 distance)
 *      lower = -central A(i-1) - second (N(i-1) + diffusion),  upper = central A(i+1) - second (N(i+1) + diffusion),
 *      diagonal = I + 2 second (N(i) + diffusion)
 */
#include "adi_sweep.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

static const struct cfd_problem problems[NPB_CLASSES] = {
    {12, 60, 0.010,
     {1.7034283709541311e-01, 1.2975252070034097e-02, 3.2527926989486055e-02, 2.6436421275166801e-02,
      1.9211784131744430e-01},
     {4.9976913345811579e-04, 4.5195666782961927e-05, 7.3973765172921357e-05, 7.3821238632439731e-05,
      8.9269630987491446e-04}},
    {24, 200, 0.0008,
     {0.1125590409344e+03, 0.1180007595731e+02, 0.2710329767846e+02, 0.2469174937669e+02, 0.2638427874317e+03},
     {0.4419655736008e+01, 0.4638531260002e+00, 0.1011551749967e+01, 0.9235878729944e+00, 0.1018045837718e+02}},
    {64, 200, 0.0008,
     {1.0806346714637264e+02, 1.1319730901220813e+01, 2.5974354511582465e+01, 2.3665622544678910e+01,
      2.5278963211748344e+02},
     {4.2348416040525025, 4.4390282496995698e-01, 9.6692480136345650e-01, 8.8302063039765474e-01,
      9.7379901770829278}},
    {102, 200, 0.0003,
     {1.4233597229287254e+03, 9.9330522590150238e+01, 3.5646025644535285e+02, 3.2485447959084092e+02,
      3.2707541254659363e+03},
     {5.2969847140936856e+01, 4.4632896115670668, 1.3122573342210174e+01, 1.2006925323559144e+01,
      1.2459576151035986e+02}},
    {162, 200, 0.0001,
     {0.62398116551764615e+04, 0.50793239190423964e+03, 0.15423530093013596e+04, 0.13302387929291190e+04,
      0.11604087428436455e+05},
     {0.16462008369091265e+03, 0.11497107903824313e+02, 0.41207446207461508e+02, 0.37087651059694167e+02,
      0.36211053051841265e+03}},
};

typedef pair block[FIELDS][FIELDS];

/* An eliminated row: x(i) + upper x(i+1) = right. */
struct row {
    block upper;
    pair right[FIELDS];
};

enum { ROW_PAIRS = sizeof(struct row) / sizeof(pair) };

static ALWAYS_INLINE pair both(double value)
{
    return (pair){value, value};
}

/* Sets convective = A and viscous = C34-weighted N + diffusion at the point of u (RNR-94-007, 3.3). */
static ALWAYS_INLINE void set_jacobians(block convective, block viscous, const double *u, const struct adi_line *line,
                                        const int d, double central, double second)
{
    ptrdiff_t row = line->row, lane = line->u_lane;
    pair inverse = adi_load(u + INV * row, lane), half_square = adi_load(u + QS * row, lane);
    pair energy = adi_load(u + EN * row, lane) * inverse; /* of a unit of mass */
    pair enthalpy = C1 * energy - C2 * half_square, velocity[3], speed, sum = both(0);
    double diffusion = second * cfd_diffusion[d];

    for (int a = 0; a < 3; a++)
        velocity[a] = adi_load(u + (VX + a) * row, lane);
    speed = velocity[d] * central;
    for (int m = 0; m < FIELDS; m++)
        for (int n = 0; n < FIELDS; n++) {
            convective[m][n] = both(0);
            viscous[m][n] = both(m == n ? diffusion : 0);
        }
    convective[0][1 + d] = both(central);
    for (int a = 0; a < 3; a++) {
        double weight = second * C34 * (a == d ? 4.0 / 3 : 1);
        pair of_velocity = weight * inverse * velocity[a];
        pair work = (weight - second * C1345) * inverse * velocity[a];

        convective[1 + a][0] = -velocity[a] * speed;
        convective[1 + a][1 + a] += speed;
        convective[1 + a][1 + d] += central * velocity[a];
        convective[4][1 + a] = -C2 * velocity[a] * speed;
        viscous[1 + a][0] = -of_velocity;
        viscous[1 + a][1 + a] += weight * inverse;
        viscous[4][1 + a] = work;
        sum += work * velocity[a];
    }
    convective[1 + d][0] += central * C2 * half_square;
    for (int b = 0; b < 3; b++)
        convective[1 + d][1 + b] -= central * C2 * velocity[b];
    convective[1 + d][4] = both(central * C2);
    convective[4][0] = (C2 * half_square - enthalpy) * speed;
    convective[4][1 + d] += central * enthalpy;
    convective[4][4] = C1 * speed;
    viscous[4][0] = -sum - second * C1345 * energy * inverse;
    viscous[4][4] += second * C1345 * inverse;
}

/* right -= lower * (right of the row before), diagonal -= lower * (its upper block). */
static ALWAYS_INLINE void subtract_before(block lower, const struct row *before, block diagonal, pair right[FIELDS])
{
    for (int m = 0; m < FIELDS; m++)
        for (int p = 0; p < FIELDS; p++) {
            right[m] -= lower[m][p] * before->right[p];
            for (int n = 0; n < FIELDS; n++)
                diagonal[m][n] -= lower[m][p] * before->upper[p][n];
        }
}

/* row <- diagonal^-1 row, by Gauss-Jordan elimination; the diagonal dominates, so there is no pivoting. */
static ALWAYS_INLINE void solve_block(block diagonal, struct row *row)
{
    for (int p = 0; p < FIELDS; p++) {
        pair inverse = 1 / diagonal[p][p];

        for (int n = p + 1; n < FIELDS; n++)
            diagonal[p][n] *= inverse;
        for (int n = 0; n < FIELDS; n++)
            row->upper[p][n] *= inverse;
        row->right[p] *= inverse;
        for (int m = 0; m < FIELDS; m++) {
            pair factor = diagonal[m][p];

            if (m == p)
                continue;
            for (int n = p + 1; n < FIELDS; n++)
                diagonal[m][n] -= factor * diagonal[p][n];
            for (int n = 0; n < FIELDS; n++)
                row->upper[m][n] -= factor * row->upper[p][n];
            row->right[m] -= factor * row->right[p];
        }
    }
}

static ALWAYS_INLINE void forward(const struct cfd *cfd, const struct adi_line *line, pair *rows, pair *carry,
                                  const int d)
{
    struct row *row = (struct row *)rows;
    const struct row *before = (const struct row *)carry;
    double second = cfd->dt * cfd->h * cfd->h, central = cfd->dt * cfd->h / 2;
    block convective[3], viscous[3]; /* of the points before, here and after, in turn */

    set_jacobians(convective[0], viscous[0], line->u - line->u_step, line, d, central, second);
    set_jacobians(convective[1], viscous[1], line->u, line, d, central, second);
    for (int i = 0; i < line->count; i++, row++) {
        int behind = i % 3, here = (i + 1) % 3, after = (i + 2) % 3;
        block lower, diagonal;

        set_jacobians(convective[after], viscous[after], line->u + (i + 1) * line->u_step, line, d, central, second);
        for (int m = 0; m < FIELDS; m++) {
            for (int n = 0; n < FIELDS; n++) {
                lower[m][n] = -convective[behind][m][n] - viscous[behind][m][n];
                diagonal[m][n] = 2 * viscous[here][m][n] + (m == n ? 1 : 0);
                row->upper[m][n] = convective[after][m][n] - viscous[after][m][n];
            }
            row->right[m] = adi_load(line->r + i * line->r_step + m * line->row, line->r_lane);
        }
        subtract_before(lower, before, diagonal, row->right);
        solve_block(diagonal, row);
        before = row;
    }
    *(struct row *)carry = *before;
}

/* The solution of the last direction is the step of the state. */
static ALWAYS_INLINE void backward(const struct adi_line *line, const pair *rows, pair *carry, const int d)
{
    pair after[FIELDS], x[FIELDS];

    for (int m = 0; m < FIELDS; m++)
        after[m] = carry[m];
    for (int i = line->count - 1; i >= 0; i--) {
        const struct row *row = (const struct row *)rows + i;

        for (int m = 0; m < FIELDS; m++) {
            double *u = line->u + i * line->u_step + m * line->row;

            x[m] = row->right[m];
            for (int n = 0; n < FIELDS; n++)
                x[m] -= row->upper[m][n] * after[n];
            if (d == 2)
                adi_store(u, line->u_lane, adi_load(u, line->u_lane) + x[m]);
            else
                adi_store(line->r + i * line->r_step + m * line->row, line->r_lane, x[m]);
        }
        for (int m = 0; m < FIELDS; m++)
            after[m] = x[m];
    }
    for (int m = 0; m < FIELDS; m++)
        carry[m] = after[m];
}

#define DIRECTION(name, d) \
    static void forward_##name(const struct cfd *cfd, const struct adi_line *line, pair *rows, pair *carry) \
    { \
        forward(cfd, line, rows, carry, d); \
    } \
    static void backward_##name(const struct cfd *cfd, const struct adi_line *line, const pair *rows, pair *carry) \
    { \
        (void)cfd; \
        backward(line, rows, carry, d); \
    }

DIRECTION(x, 0)
DIRECTION(y, 1)
DIRECTION(z, 2)

int main(int argc, char **argv)
{
    static const struct adi_method method = {
        .kernel = "BT",
        .problems = problems,
        .operations = {3478.8, -17655.7, 28023.7, 0},
        .row_pairs = ROW_PAIRS,
        .forward_pairs = ROW_PAIRS,
        .backward_pairs = FIELDS,
        .forward = {forward_x, forward_y, forward_z},
        .backward = {backward_x, backward_y, backward_z},
    };

    return adi_main(argc, argv, &method);
}
