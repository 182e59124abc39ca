/* The few functions of a C library that MPI programs use; see include/. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../library/tile.h"

int printf(const char *format, ...)
{
    va_list words;
    int count;

    va_start(words, format);
    count = say_words(format, &words);
    va_end(words);
    return count;
}

int puts(const char *text)
{
    return printf("%s\n", text);
}

void exit(int status)
{
    process_exit(status);
}

int atoi(const char *text)
{
    return text[0] == '-' ? -(int)number_of(text + 1) : (int)number_of(text);
}

void *malloc(size_t size)
{
    static char *at;
    static size_t left;
    char *found;
    size_t pages;

    size = (size + 15) / 16 * 16;
    if (size > left) {
        pages = (size + PAGE_SIZE - 1) / PAGE_SIZE;
        found = grow((int)pages);
        if (!found)
            return NULL;
        if (found != at + left) { /* somebody else has grown in between */
            at = found;
            left = 0;
        }
        left += pages * PAGE_SIZE;
    }
    found = at;
    at += size;
    left -= size;
    return found;
}

void free(void *memory)
{
    (void)memory;
}

int strcmp(const char *left, const char *right)
{
    while (*left && *left == *right)
        left++, right++;
    return (unsigned char)*left - (unsigned char)*right;
}

double sqrt(double value)
{
    double root;

    __asm__("sqrtsd %1, %0" : "=x"(root) : "x"(value));
    return root;
}

double fabs(double value)
{
    return value < 0 ? -value : value;
}

/*
 * value = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m-1)/(m+1)), whose series has terms below 2^-55
 * after the eleventh. Correct to two units in the last place for normal positive values.
 */
double log(double value)
{
    union { double value; unsigned long bits; } as = {value};
    int exponent = (int)(as.bits >> 52) - 1023;
    double ratio, square, sum = 0;

    as.bits = (as.bits & 0xffffffffffffful) | 1023ul << 52;
    if (as.value > 1.4142135623730951) {
        as.value /= 2;
        exponent++;
    }
    ratio = (as.value - 1) / (as.value + 1);
    square = ratio * ratio;
    for (int odd = 23; odd >= 3; odd -= 2)
        sum = (sum + 1.0 / odd) * square;
    return exponent * 0.6931471805599453 + (2 * ratio + 2 * ratio * sum);
}
