/* See inflow.h. */
#include "inflow.h"

#include <errno.h>
#include <zstd.h>

uint8_t *inflow_taken(struct inflow *inflow)
{
    return inflow->taken;
}

static int begin(struct inflow *inflow)
{
    inflow->kind = inflow->taken[inflow->taken_at++];
    inflow->taken_count--;
    if (inflow->kind == INFLOW_PLAIN)
        return 0;
    if (inflow->kind != INFLOW_PACKED)
        return -EPROTO;
    if (!(inflow->unpacker = ZSTD_createDCtx()))
        return -ENOMEM;
    return ZSTD_isError(ZSTD_DCtx_setParameter(inflow->unpacker, ZSTD_d_windowLogMax, INFLOW_WINDOW_LOG)) ? -EPROTO : 0;
}

static int unpack(struct inflow *inflow)
{
    ZSTD_inBuffer from = {inflow->taken + inflow->taken_at, inflow->taken_count, 0};
    ZSTD_outBuffer into = {inflow->room, INFLOW_ROOM, 0};

    while ((from.pos < from.size || inflow->is_full) && into.pos < into.size) {
        size_t before = into.pos;

        if (ZSTD_isError(ZSTD_decompressStream(inflow->unpacker, &into, &from)))
            return -EPROTO;
        inflow->is_full = into.pos == into.size;
        if (into.pos == before && from.pos == from.size)
            break;
    }
    inflow->taken_at += from.pos;
    inflow->taken_count -= from.pos;
    inflow->ready_at = 0;
    inflow->ready_count = into.pos;
    return 0;
}

int inflow_take(struct inflow *inflow, size_t count)
{
    int error;

    inflow->taken_at = 0;
    inflow->taken_count = count;
    if (count && !inflow->kind && (error = begin(inflow)))
        return error;
    return inflow->kind == INFLOW_PACKED ? unpack(inflow) : 0;
}

const uint8_t *inflow_ready(const struct inflow *inflow, size_t *count)
{
    if (inflow->kind == INFLOW_PACKED) {
        *count = inflow->ready_count;
        return inflow->room + inflow->ready_at;
    }
    *count = inflow->taken_count;
    return inflow->taken + inflow->taken_at;
}

int inflow_given(struct inflow *inflow, size_t count)
{
    if (inflow->kind != INFLOW_PACKED) {
        inflow->taken_at += count;
        inflow->taken_count -= count;
        return 0;
    }
    inflow->ready_at += count;
    inflow->ready_count -= count;
    return !inflow->ready_count && (inflow->taken_count || inflow->is_full) ? unpack(inflow) : 0;
}

void inflow_free(struct inflow *inflow)
{
    ZSTD_freeDCtx(inflow->unpacker);
}
