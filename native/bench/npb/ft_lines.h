/*
 * Fourier transforms of FT_LINES lines at once, for NPB FT.
 *
 * The lines lie side by side, real and imaginary parts apart: re[k * FT_LINES + line]. So every inner loop runs along
 * contiguous numbers with one twiddle factor, whatever the line's own place in the three-dimensional array was.
 */
#ifndef WHERRY_BENCH_FT_LINES_H
#define WHERRY_BENCH_FT_LINES_H

enum { FT_LINES = 8, FT_LONGEST = 512 };

struct ft_roots {
    int n;                                   /* a power of two, at least 4 */
    double re[FT_LONGEST], im[FT_LONGEST];   /* exp(-2 pi i k / n) */
};

struct ft_block {
    double re[FT_LONGEST * FT_LINES], im[FT_LONGEST * FT_LINES];
};

void ft_roots_make(struct ft_roots *roots, int n);

/* Transforms the lines of a, forward and without a factor; gives the block that has the result: a or b. */
struct ft_block *ft_transform(const struct ft_roots *roots, struct ft_block *a, struct ft_block *b);

/* The inverse, without its factor 1/n: a forward transform with the two parts exchanged. Likewise. */
struct ft_block *ft_transform_back(const struct ft_roots *roots, struct ft_block *a, struct ft_block *b);

#endif
