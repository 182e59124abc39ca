#include "exact.h"

/* An object of the library: a number with MPICH, the address of a variable with Open MPI. */
struct object {
    word number;
    const char *variable;
};

/* Integers of C, then others that are exact. */
static const struct object types[] = {
    {0x4c000405, "ompi_mpi_int"},
    {0x4c000807, "ompi_mpi_long"},
    {0x4c000809, "ompi_mpi_long_long_int"},
    {0x4c000203, "ompi_mpi_short"},
    {0x4c000118, "ompi_mpi_signed_char"},
    {0x4c000406, "ompi_mpi_unsigned"},
    {0x4c000808, "ompi_mpi_unsigned_long"},
    {0x4c000819, "ompi_mpi_unsigned_long_long"},
    {0x4c000204, "ompi_mpi_unsigned_short"},
    {0x4c000102, "ompi_mpi_unsigned_char"},
    {0x4c000137, "ompi_mpi_int8_t"},
    {0x4c000238, "ompi_mpi_int16_t"},
    {0x4c000439, "ompi_mpi_int32_t"},
    {0x4c00083a, "ompi_mpi_int64_t"},
    {0x4c00013b, "ompi_mpi_uint8_t"},
    {0x4c00023c, "ompi_mpi_uint16_t"},
    {0x4c00043d, "ompi_mpi_uint32_t"},
    {0x4c00083e, "ompi_mpi_uint64_t"},
    {0x4c000101, "ompi_mpi_char"},
    {0x4c00010d, "ompi_mpi_byte"},
    {0x4c00013f, "ompi_mpi_c_bool"},
    {0x4c000843, "ompi_mpi_aint"},
    {0x4c000844, "ompi_mpi_offset"},
    {0x4c000845, "ompi_mpi_count"},
    {0x4c00041b, "ompi_mpi_integer"},
    {0x4c000430, "ompi_mpi_integer4"},
    {0x4c000831, "ompi_mpi_integer8"},
    {0x4c00041d, "ompi_mpi_logical"},
};

/* Those for which the first OF_NUMBERS operators are defined, and no other ones by all libraries. */
static const struct object numbers[] = {
    {0x4c00040a, "ompi_mpi_float"}, {0x4c00080b, "ompi_mpi_double"}, {0x4c00100c, "ompi_mpi_long_double"},
    {0x4c00041c, "ompi_mpi_real"},  {0x4c00081f, "ompi_mpi_dblprec"}, {0x4c000427, "ompi_mpi_real4"},
    {0x4c000829, "ompi_mpi_real8"}, {0x4c00041b, "ompi_mpi_integer"}, {0x4c000430, "ompi_mpi_integer4"},
    {0x4c000831, "ompi_mpi_integer8"},
};

static const struct object operators[] = {
    {0x58000001, "ompi_mpi_op_max"}, {0x58000002, "ompi_mpi_op_min"},  {0x58000003, "ompi_mpi_op_sum"},
    {0x58000004, "ompi_mpi_op_prod"}, {0x58000005, "ompi_mpi_op_land"}, {0x58000006, "ompi_mpi_op_band"},
    {0x58000007, "ompi_mpi_op_lor"}, {0x58000008, "ompi_mpi_op_bor"},  {0x58000009, "ompi_mpi_op_lxor"},
    {0x5800000a, "ompi_mpi_op_bxor"},
};

static const struct object no_operator[] = {{0x18000000, "ompi_mpi_op_null"}};

enum {
    TYPES = sizeof types / sizeof *types,
    INTEGERS = 18, /* of C */
    NUMBERS = sizeof numbers / sizeof *numbers,
    OPERATORS = sizeof operators / sizeof *operators,
    OF_NUMBERS = 4,
};

/* The handles of objects, looked for once. Below MPI_THREAD_MULTIPLE one thread calls at a time. */
static bool is_among(word handle, const struct object *objects, word *known, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (!known[i])
            known[i] = mpi.short_handles ? objects[i].number : library_object(objects[i].variable);
        if (known[i] == handle)
            return true;
    }
    return false;
}

static word known_types[TYPES], known_numbers[NUMBERS], known_operators[OPERATORS];

bool is_exact(word type, word operator)
{
    return is_among(type, types, known_types, TYPES) && is_among(operator, operators, known_operators, OPERATORS);
}

bool is_arithmetic(word type, word operator)
{
    if (is_among(operator, operators, known_operators, OF_NUMBERS) &&
        is_among(type, numbers, known_numbers, NUMBERS))
        return true;
    return is_among(operator, operators, known_operators, OPERATORS) &&
           is_among(type, types, known_types, INTEGERS);
}

bool is_no_operator(word operator)
{
    static word known[1];

    return is_among(operator, no_operator, known, 1);
}
