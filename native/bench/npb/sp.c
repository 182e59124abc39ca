/*
 * NPB SP, a pseudo-application: the equations in cfd.h by alternating directions, diagonalised, so that every direction
 * needs scalar pentadiagonal systems only. Few large messages: 22 doubles forwards and 10 backwards for every line.
 *
 * In the eigenvectors of a direction, three of the five fields move with the flow's speed along it and two with the
 * speed plus and minus that of sound: three matrices, five right-hand sides. r goes from one set of eigenvectors to the
 * next in pieces: into x's before the x lines (prepare), then at the end of each line into the next direction's.
 */
#include "adi_sweep.h"

#include <math.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

static const struct cfd_problem problems[NPB_CLASSES] = {
    {12, 100, 0.015,
     {2.7470315451339479e-02, 1.0360746705285417e-02, 1.6235745065095532e-02, 1.5840557224455615e-02,
      3.4849040609362460e-02},
     {2.7289258557377227e-05, 1.0364446640837285e-05, 1.6154798287166471e-05, 1.5750704994480102e-05,
      3.4177666183390531e-05}},
    {36, 400, 0.0015,
     {0.1893253733584e-02, 0.1717075447775e-03, 0.2778153350936e-03, 0.2887475409984e-03, 0.3143611161242e-02},
     {0.7542088599534e-04, 0.6512852253086e-05, 0.1049092285688e-04, 0.1128838671535e-04, 0.1212845639773e-03}},
    {64, 400, 0.0015,
     {2.4799822399300195, 1.1276337964368832, 1.5028977888770491, 1.4217816211695179, 2.1292113035138280},
     {1.0900140297820550e-04, 3.7343951769282091e-05, 5.0092785406541633e-05, 4.7671093939528255e-05,
      1.3621613399213001e-04}},
    {102, 400, 0.001,
     {0.6903293579998e+02, 0.3095134488084e+02, 0.4103336647017e+02, 0.3864769009604e+02, 0.5643482272596e+02},
     {0.9810006190188e-02, 0.1022827905670e-02, 0.1720597911692e-02, 0.1694479428231e-02, 0.1847456263981e-01}},
    {162, 400, 0.00067,
     {0.5881691581829e+03, 0.2454417603569e+03, 0.3293829191851e+03, 0.3081924971891e+03, 0.4597223799176e+03},
     {0.2598120500183e+00, 0.2590888922315e-01, 0.5132886416320e-01, 0.4806073419454e-01, 0.5483377491301e+00}},
};

enum { FLOW, FASTER, SLOWER, SPEEDS }; /* the three matrices */

/* An eliminated row: x(i) + next x(i+1) + beyond x(i+2) = right, where each matrix has its own next and beyond. */
struct row {
    pair next[SPEEDS], beyond[SPEEDS], right[FIELDS];
};

enum { ROW_PAIRS = sizeof(struct row) / sizeof(pair) };

static const int matrix_of[FIELDS] = {FLOW, FLOW, FLOW, FASTER, SLOWER};

#define HALF_ROOT 0.70710678118654752440 /* sqrt(1/2) */

/*
 * The terms of a point in the rows of its neighbours: speeds times dt / (2 distance), diffusion times dt / distance^2.
 */
struct point {
    pair flow, sound, diffusion;
};

/* r <- r in the eigenvectors of x: the first of the five changes. */
static void prepare_row(const struct cfd_cell *cell, int j, int k)
{
    ptrdiff_t row = cell->row;
    double *restrict r = cfd_r(cell, 0, j, k);
    const double *restrict u = cfd_u(cell, 0, j, k);
    int from = cell->lo[0], to = cell->hi[0];

#pragma GCC ivdep /* r and u do not overlap: GCC forgets it when it inlines */
    for (int i = from; i < to; i++) {
        double inverse = u[INV * row + i], x = u[VX * row + i], y = u[VY * row + i], z = u[VZ * row + i];
        double square = C1 * u[PR * row + i] * inverse, sound = sqrt(square);
        double r0 = r[i], r1 = r[row + i], r2 = r[2 * row + i], r3 = r[3 * row + i], r4 = r[4 * row + i];
        double entropy = C2 / square * (u[QS * row + i] * r0 - x * r1 - y * r2 - z * r3 + r4);
        double flow = HALF_ROOT * inverse * (x * r0 - r1), acoustic = HALF_ROOT * inverse * sound * entropy;

        r[i] = r0 - entropy;
        r[row + i] = inverse * (r3 - z * r0);
        r[2 * row + i] = inverse * (y * r0 - r2);
        r[3 * row + i] = acoustic - flow;
        r[4 * row + i] = acoustic + flow;
    }
}

static void prepare(const struct cfd *cfd)
{
    for (int c = 0; c < cfd->cells; c++) {
        const struct cfd_cell *cell = &cfd->cell[c];

        for (int k = cell->lo[2]; k < cell->hi[2]; k++)
            for (int j = cell->lo[1]; j < cell->hi[1]; j++)
                prepare_row(cell, j, k);
    }
}

static ALWAYS_INLINE pair root(pair value)
{
    return (pair){sqrt(value[0]), sqrt(value[1])};
}

static ALWAYS_INLINE pair sound_squared(const struct adi_line *line, const double *u)
{
    return C1 * adi_load(u + PR * line->row, line->u_lane) * adi_load(u + INV * line->row, line->u_lane);
}

/* The largest of the viscous weights is always that of the conduction. */
static ALWAYS_INLINE struct point point_at(const struct adi_line *line, const double *u, const int d, double central,
                                           double second)
{
    return (struct point){
        .flow = central * adi_load(u + (VX + d) * line->row, line->u_lane),
        .sound = central * root(sound_squared(line, u)),
        .diffusion = second * (cfd_diffusion[d] + C1345 * adi_load(u + INV * line->row, line->u_lane)),
    };
}

static ALWAYS_INLINE pair speed_of(const struct point *point, const int matrix)
{
    return matrix == FLOW ? point->flow : matrix == FASTER ? point->flow + point->sound : point->flow - point->sound;
}

/* Takes the unknowns of the two rows before out of this one, and divides by the rest on the diagonal. */
static ALWAYS_INLINE void eliminate(struct row *row, const struct row *before, const struct row *second_before,
                                    const struct point *behind, const struct point *here, const struct point *after,
                                    const double fourth[5])
{
    for (int s = 0; s < SPEEDS; s++) {
        pair low = fourth[1] - speed_of(behind, s) - behind->diffusion - fourth[0] * second_before->next[s];
        pair middle = 1 + fourth[2] + 2 * here->diffusion - fourth[0] * second_before->beyond[s]
                      - low * before->next[s];
        pair high = fourth[3] + speed_of(after, s) - after->diffusion - low * before->beyond[s];
        pair inverse = 1 / middle;

        row->next[s] = inverse * high;
        row->beyond[s] = inverse * fourth[4];
        for (int m = 0; m < FIELDS; m++)
            if (matrix_of[m] == s)
                row->right[m] = inverse * (row->right[m] - fourth[0] * second_before->right[m]
                                           - low * before->right[m]);
    }
}

/* carry: the last row but one, and the last one */
static ALWAYS_INLINE void forward(const struct cfd *cfd, const struct adi_line *line, pair *rows, pair *carry,
                                  const int d)
{
    struct row *row = (struct row *)rows, *carried = (struct row *)carry;
    const struct row *second_before = carried, *before = carried + 1;
    double second = cfd->dt * cfd->h * cfd->h, central = cfd->dt * cfd->h / 2, fourth[5];
    struct point behind = point_at(line, line->u - line->u_step, d, central, second);
    struct point here = point_at(line, line->u, d, central, second), after;

    for (int i = 0; i < line->count; i++, row++) {
        const double *difference = cfd_fourth_difference(cfd->n, line->first + i);

        for (int p = 0; p < 5; p++)
            fourth[p] = cfd->dt * DSSP * difference[p];
        for (int m = 0; m < FIELDS; m++)
            row->right[m] = adi_load(line->r + i * line->r_step + m * line->row, line->r_lane);
        after = point_at(line, line->u + (i + 1) * line->u_step, d, central, second);
        eliminate(row, before, second_before, &behind, &here, &after, fourth);
        second_before = before;
        before = row;
        behind = here;
        here = after;
    }
    {
        struct row last_two[2] = {*second_before, *before};

        carried[0] = last_two[0];
        carried[1] = last_two[1];
    }
}

/* The second to fourth changes of r: from x's eigenvectors to y's, from y's to z's. */
static ALWAYS_INLINE void turn(const struct adi_line *line, double *at, const pair x[FIELDS], const int d)
{
    pair difference = HALF_ROOT * (x[3] - x[4]), half_sum = 0.5 * (x[3] + x[4]);
    pair acoustic = HALF_ROOT * (d == 0 ? x[2] : x[0]);
    pair turned[FIELDS] = {d == 0 ? -x[1] : difference, d == 0 ? x[0] : -x[2], d == 0 ? difference : x[1],
                           half_sum - acoustic, half_sum + acoustic};

    for (int m = 0; m < FIELDS; m++)
        adi_store(at + m * line->row, line->r_lane, turned[m]);
}

/* The last change: from z's eigenvectors to the step of the state, which is added. */
static ALWAYS_INLINE void add_step(const struct adi_line *line, double *u, const pair x[FIELDS])
{
    ptrdiff_t row = line->row, lane = line->u_lane;
    pair vx = adi_load(u + VX * row, lane), vy = adi_load(u + VY * row, lane), vz = adi_load(u + VZ * row, lane);
    pair rho = adi_load(u, lane), square = sound_squared(line, u), weight = HALF_ROOT * rho;
    pair acoustic = weight / root(square) * (x[3] + x[4]), mass = x[2] + acoustic, push = weight * (x[3] - x[4]);
    pair step[FIELDS] = {
        mass,
        vx * mass - rho * x[1],
        vy * mass + rho * x[0],
        vz * mass + push,
        rho * (vy * x[0] - vx * x[1]) + adi_load(u + QS * row, lane) * mass + square / C2 * acoustic + vz * push,
    };

    for (int m = 0; m < FIELDS; m++)
        adi_store(u + m * row, lane, adi_load(u + m * row, lane) + step[m]);
}

/* carry: the solution at the next point, and at the one beyond */
static ALWAYS_INLINE void backward(const struct adi_line *line, const pair *rows, pair *carry, const int d)
{
    pair next[FIELDS], beyond[FIELDS], x[FIELDS];

    for (int m = 0; m < FIELDS; m++) {
        next[m] = carry[m];
        beyond[m] = carry[FIELDS + m];
    }
    for (int i = line->count - 1; i >= 0; i--) {
        const struct row *row = (const struct row *)rows + i;

        for (int m = 0; m < FIELDS; m++) {
            x[m] = row->right[m] - row->next[matrix_of[m]] * next[m] - row->beyond[matrix_of[m]] * beyond[m];
            beyond[m] = next[m];
            next[m] = x[m];
        }
        if (d == 2)
            add_step(line, line->u + i * line->u_step, x);
        else
            turn(line, line->r + i * line->r_step, x, d);
    }
    for (int m = 0; m < FIELDS; m++) {
        carry[m] = next[m];
        carry[FIELDS + m] = beyond[m];
    }
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
        .kernel = "SP",
        .problems = problems,
        .operations = {881.174, -4683.91, 11484.5, -19272.4},
        .row_pairs = ROW_PAIRS,
        .forward_pairs = 2 * ROW_PAIRS,
        .backward_pairs = 2 * FIELDS,
        .prepare = prepare,
        .forward = {forward_x, forward_y, forward_z},
        .backward = {backward_x, backward_y, backward_z},
    };

    return adi_main(argc, argv, &method);
}
