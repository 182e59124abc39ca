/* See outflow.h. */
#include "outflow.h"

#include <errno.h>
#include <zstd.h>

#include "inflow.h"

enum { LEVEL = 1 };

int outflow_open(struct outflow *outflow, int compresses)
{
    outflow->room[0] = compresses ? INFLOW_PACKED : INFLOW_PLAIN;
    outflow->ready_count = 1;
    if (!compresses)
        return 0;
    outflow->packer = ZSTD_createCCtx();
    return outflow->packer && !ZSTD_isError(ZSTD_CCtx_setParameter(outflow->packer, ZSTD_c_compressionLevel, LEVEL)) &&
                   !ZSTD_isError(ZSTD_CCtx_setParameter(outflow->packer, ZSTD_c_windowLog, INFLOW_WINDOW_LOG))
               ? 0
               : -ENOMEM;
}

/* As many of the given bytes as there is room for; each piece is flushed, as the other end may wait for it. */
static int pack(struct outflow *outflow)
{
    ZSTD_inBuffer from = {outflow->given + outflow->given_at, outflow->given_count, 0};
    ZSTD_outBuffer into = {outflow->room, OUTFLOW_ROOM, 0};
    size_t left = ZSTD_compressStream2(outflow->packer, &into, &from, ZSTD_e_flush);

    if (ZSTD_isError(left))
        return -EIO;
    outflow->is_flushing = left || from.pos < from.size;
    outflow->given_at += from.pos;
    outflow->given_count -= from.pos;
    outflow->ready_at = 0;
    outflow->ready_count = into.pos;
    return 0;
}

int outflow_give(struct outflow *outflow, size_t count)
{
    outflow->given_at = 0;
    outflow->given_count = count;
    return outflow->packer ? pack(outflow) : 0;
}

const uint8_t *outflow_ready(const struct outflow *outflow, size_t *count)
{
    if (outflow->packer || outflow->ready_count) {
        *count = outflow->ready_count;
        return outflow->room + outflow->ready_at;
    }
    *count = outflow->given_count;
    return outflow->given + outflow->given_at;
}

int outflow_sent(struct outflow *outflow, size_t count)
{
    if (!outflow->ready_count) {
        outflow->given_at += count;
        outflow->given_count -= count;
        return 0;
    }
    outflow->ready_at += count;
    outflow->ready_count -= count;
    return !outflow->ready_count && outflow->is_flushing ? pack(outflow) : 0;
}

void outflow_free(struct outflow *outflow)
{
    ZSTD_freeCCtx(outflow->packer);
}
