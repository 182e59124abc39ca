/*
 * Text: the output of a program, and printf. One message of text is at most MAIL_SIZE bytes; longer texts are cut into
 * several.
 */
#include "tile.h"

long number_of(const char *text)
{
    long value = 0;

    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (*text - '0');
    return value;
}

struct line {
    char bytes[MAIL_SIZE];
    size_t count, total;
};

static void line_flush(struct line *line)
{
    if (line->count)
        mail_send(CONSOLE_PROCESS, 0, line->bytes, line->count);
    line->count = 0;
}

static void line_put(struct line *line, char byte)
{
    if (line->count == sizeof(line->bytes))
        line_flush(line);
    line->bytes[line->count++] = byte;
    line->total++;
}

/* One conversion: %[-][0][width][.precision][l|ll|z]letter */
struct shape {
    bool left, zero;
    int width, precision; /* precision < 0: none was given */
    int length;           /* how many l */
};

static void put_padded(struct line *line, const struct shape *shape, const char *sign, const char *text, int count)
{
    int pad = shape->width - count - (int)strlen(sign);

    for (; !shape->left && !shape->zero && pad > 0; pad--)
        line_put(line, ' ');
    while (*sign)
        line_put(line, *sign++);
    for (; shape->zero && !shape->left && pad > 0; pad--)
        line_put(line, '0');
    while (count--)
        line_put(line, *text++);
    for (; pad > 0; pad--)
        line_put(line, ' ');
}

/* Digits before `end`. Returns the first. */
static char *digits_of(char *end, unsigned long value, unsigned base)
{
    do
        *--end = "0123456789abcdef"[value % base];
    while (value /= base);
    return end;
}

static void put_number(struct line *line, const struct shape *shape, unsigned long value, unsigned base, bool negative)
{
    char digits[24], *end = digits + sizeof(digits), *first = digits_of(end, value, base);

    put_padded(line, shape, negative ? "-" : "", first, (int)(end - first));
}

/*
 * %f, rounded exactly as IEEE 754 asks (half to even), so that it prints the same as any C library. A double is an
 * integer of 53 bits times a power of two, and so its fraction times 10^precision fits in 128 bits up to 18 digits.
 */
static void put_double(struct line *line, const struct shape *shape, double value)
{
    union { double value; uint64_t bits; } as = {value};
    int precision = shape->precision < 0 ? 6 : shape->precision > 18 ? 18 : shape->precision;
    int shift = 1075 - (int)(as.bits >> 52 & 0x7ff); /* value = mantissa / 2^shift */
    uint64_t mantissa = (as.bits & 0xfffffffffffff) | (shift == 1075 ? 0 : 1ull << 52), scale = 1, whole = 0;
    unsigned __int128 scaled, half;
    char text[48], *end = text + sizeof(text), *first = end;
    bool negative = as.bits >> 63;

    if (shift < -10) { /* 2^63 and more; with the largest exponent, infinite or not a number */
        const char *word = shift > -972 ? "huge" : mantissa << 12 ? "nan" : "inf";

        put_padded(line, shape, negative ? "-" : "", word, (int)strlen(word));
        return;
    }
    for (int i = 0; i < precision; i++)
        scale *= 10;
    if (shift <= 0) {
        whole = mantissa << -shift;
        scaled = 0;
    } else {
        if (shift < 64) {
            whole = mantissa >> shift;
            mantissa &= (1ull << shift) - 1;
        }
        if (shift > 120) {
            scaled = 0; /* less than half a digit whatever the precision */
        } else {
            scaled = (unsigned __int128)mantissa * scale;
            half = (unsigned __int128)1 << (shift - 1);
            mantissa = (uint64_t)(scaled >> shift);
            scaled &= (half << 1) - 1;
            mantissa += scaled > half || (scaled == half && ((precision ? mantissa : whole) & 1));
            scaled = mantissa;
        }
    }
    if ((uint64_t)scaled >= scale) {
        whole++;
        scaled = (uint64_t)scaled - scale;
    }
    if (precision) {
        first = digits_of(end, (uint64_t)scaled, 10);
        while (end - first < precision)
            *--first = '0';
        *--first = '.';
    }
    first = digits_of(first, whole, 10);
    put_padded(line, shape, negative ? "-" : "", first, (int)(end - first));
}

static const char *take_shape(const char *format, struct shape *shape, va_list *words)
{
    *shape = (struct shape){.precision = -1};
    for (; *format == '-' || *format == '0'; format++)
        *(*format == '-' ? &shape->left : &shape->zero) = true;
    if (*format == '*') {
        shape->width = va_arg(*words, int);
        format++;
    }
    for (; *format >= '0' && *format <= '9'; format++)
        shape->width = shape->width * 10 + (*format - '0');
    if (*format == '.')
        for (shape->precision = 0, format++; *format >= '0' && *format <= '9'; format++)
            shape->precision = shape->precision * 10 + (*format - '0');
    for (; *format == 'l' || *format == 'z'; format++)
        shape->length++;
    return format;
}

static void put_formatted(struct line *line, const char *format, va_list *words)
{
    struct shape shape;
    const char *text;
    long value;
    char byte;

    for (; *format; format++) {
        if (*format != '%') {
            line_put(line, *format);
            continue;
        }
        format = take_shape(format + 1, &shape, words);
        switch (*format) {
        case 'd':
        case 'i':
            value = shape.length ? va_arg(*words, long) : va_arg(*words, int);
            put_number(line, &shape, value < 0 ? -(unsigned long)value : (unsigned long)value, 10, value < 0);
            break;
        case 'u':
        case 'x':
            value = shape.length ? va_arg(*words, long) : (long)va_arg(*words, unsigned);
            put_number(line, &shape, (unsigned long)value, *format == 'u' ? 10 : 16, false);
            break;
        case 'f':
            put_double(line, &shape, va_arg(*words, double));
            break;
        case 's':
            text = va_arg(*words, const char *);
            shape.zero = false;
            put_padded(line, &shape, "", text, (int)strlen(text));
            break;
        case 'c':
            byte = (char)va_arg(*words, int);
            put_padded(line, &shape, "", &byte, 1);
            break;
        case 0:
            return;
        default:
            line_put(line, *format);
        }
    }
}

int say_words(const char *format, va_list *words)
{
    struct line line;

    line.count = line.total = 0;
    put_formatted(&line, format, words);
    line_flush(&line);
    return (int)line.total;
}

void say(const char *format, ...)
{
    va_list words;

    va_start(words, format);
    say_words(format, &words);
    va_end(words);
}
