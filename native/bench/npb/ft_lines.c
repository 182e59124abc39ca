/* Stockham's autosorting transform in steps of four, a last one of two where the length asks for it; see ft_lines.h. */
#include "ft_lines.h"

#include <math.h>

void ft_roots_make(struct ft_roots *roots, int n)
{
    roots->n = n;
    for (int k = 0; k < n; k++) {
        roots->re[k] = cos(2 * M_PI * k / n);
        roots->im[k] = -sin(2 * M_PI * k / n);
    }
}

/*
 * One step of four: transforms of length `length` become four times as many of length / 4. `width` numbers belong
 * together: FT_LINES times the number of transforms already split off.
 */
static void step_four(const struct ft_roots *roots, int length, int width, const double *restrict in_re,
                      const double *restrict in_im, double *restrict out_re, double *restrict out_im)
{
    int quarter = length / 4, far = quarter * width;

    for (int k = 0; k < quarter; k++) {
        int root = k * (roots->n / length);
        double re1 = roots->re[root], im1 = roots->im[root], re2 = roots->re[2 * root], im2 = roots->im[2 * root];
        double re3 = roots->re[3 * root], im3 = roots->im[3 * root];
        const double *restrict re = in_re + k * width, *restrict im = in_im + k * width;
        double *restrict to_re = out_re + 4 * k * width, *restrict to_im = out_im + 4 * k * width;

#pragma GCC ivdep
        for (int i = 0; i < width; i++) {
            double sum_re = re[i] + re[i + 2 * far], sum_im = im[i] + im[i + 2 * far];
            double difference_re = re[i] - re[i + 2 * far], difference_im = im[i] - im[i + 2 * far];
            double odd_re = re[i + far] + re[i + 3 * far], odd_im = im[i + far] + im[i + 3 * far];
            double turned_re = im[i + far] - im[i + 3 * far], turned_im = re[i + 3 * far] - re[i + far];
            double a = difference_re + turned_re, b = difference_im + turned_im;
            double c = sum_re - odd_re, d = sum_im - odd_im;
            double e = difference_re - turned_re, f = difference_im - turned_im;

            to_re[i] = sum_re + odd_re;
            to_im[i] = sum_im + odd_im;
            to_re[i + width] = a * re1 - b * im1;
            to_im[i + width] = a * im1 + b * re1;
            to_re[i + 2 * width] = c * re2 - d * im2;
            to_im[i + 2 * width] = c * im2 + d * re2;
            to_re[i + 3 * width] = e * re3 - f * im3;
            to_im[i + 3 * width] = e * im3 + f * re3;
        }
    }
}

static void step_two(int width, const double *restrict in, double *restrict out)
{
    for (int i = 0; i < width; i++) {
        out[i] = in[i] + in[i + width];
        out[i + width] = in[i] - in[i + width];
    }
}

static struct ft_block *transform(const struct ft_roots *roots, struct ft_block *a, struct ft_block *b, int back)
{
    int length = roots->n, width = FT_LINES;

    for (; length > 1; width *= 4, length /= 4) {
        struct ft_block *other = a;

        if (length == 2) {
            step_two(width, a->re, b->re);
            step_two(width, a->im, b->im);
        } else if (back) {
            step_four(roots, length, width, a->im, a->re, b->im, b->re);
        } else {
            step_four(roots, length, width, a->re, a->im, b->re, b->im);
        }
        a = b;
        b = other;
    }
    return a;
}

struct ft_block *ft_transform(const struct ft_roots *roots, struct ft_block *a, struct ft_block *b)
{
    return transform(roots, a, b, 0);
}

struct ft_block *ft_transform_back(const struct ft_roots *roots, struct ft_block *a, struct ft_block *b)
{
    return transform(roots, a, b, 1);
}
