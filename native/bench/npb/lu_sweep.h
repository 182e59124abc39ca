/* The two triangular sweeps of LU's symmetric successive over-relaxation. */
#ifndef WHERRY_BENCH_NPB_LU_SWEEP_H
#define WHERRY_BENCH_NPB_LU_SWEEP_H

#include "cfd.h"

#define LU_OMEGA 1.2 /* over-relaxation */

struct lu_sweep {
    double *out, *in; /* messages: the edge of one plane, FIELDS values for each point */
    double *sum;      /* FIELDS rows */
    double *inverse;  /* two rows: 1 / diagonal for the momenta, and for the energy */
};

double lu_sweep_bytes(const struct cfd *cfd);
void lu_sweep_allocate(struct lu_sweep *sweep, const struct cfd *cfd);
void lu_sweep_free(struct lu_sweep *sweep);

/* r <- (D + omega L)^-1 r, then r <- (I + omega D^-1 U)^-1 r; derived components of u must be right. */
void lu_sweep_lower(struct lu_sweep *sweep, const struct cfd *cfd);
void lu_sweep_upper(struct lu_sweep *sweep, const struct cfd *cfd);

#endif
