/* The part of <math.h> that programs for tiles have. */
#ifndef WHERRY_TILE_MATH_H
#define WHERRY_TILE_MATH_H

double sqrt(double value);
double fabs(double value);
double log(double value);

#endif
