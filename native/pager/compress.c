/* See compress.h. */
#include "compress.h"

#include <endian.h>
#include <errno.h>
#include <isa-l/crc.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum {
    LEVEL = 1,
    CHECK = 4,       /* bytes of the checksum */
    LEAST_GAIN = 16, /* a sixteenth of the contents */
    SKIPPED_MAX = 3,
};

struct packer {
    ZSTD_CCtx *zstd;
    uint32_t skip, skipped; /* how many are not tried, and of these how many were not */
};

struct unpacker {
    ZSTD_DCtx *zstd;
};

static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
    return ~crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)count, ~0U);
}

struct packer *packer_new(void)
{
    struct packer *packer = calloc(1, sizeof(*packer));

    if (packer && !(packer->zstd = ZSTD_createCCtx())) {
        free(packer);
        return NULL;
    }
    return packer;
}

uint32_t packer_pack(struct packer *packer, const uint8_t *contents, uint32_t count, uint8_t *packed)
{
    uint32_t check, room = count - count / LEAST_GAIN - CHECK;
    size_t got;

    if (packer->skipped < packer->skip) {
        packer->skipped++;
        return 0;
    }
    got = ZSTD_compressCCtx(packer->zstd, packed + CHECK, room, contents, count, LEVEL);
    packer->skipped = 0;
    if (ZSTD_isError(got)) { /* it does not fit */
        packer->skip = packer->skip < SKIPPED_MAX ? 2 * packer->skip + 1 : SKIPPED_MAX;
        return 0;
    }
    packer->skip = 0;
    check = htobe32(crc32c(contents, count));
    memcpy(packed, &check, sizeof(check));
    return CHECK + (uint32_t)got;
}

struct unpacker *unpacker_new(void)
{
    struct unpacker *unpacker = calloc(1, sizeof(*unpacker));

    if (unpacker && !(unpacker->zstd = ZSTD_createDCtx())) {
        free(unpacker);
        return NULL;
    }
    return unpacker;
}

int unpacker_unpack(struct unpacker *unpacker, const uint8_t *payload, uint32_t length, uint8_t *contents,
                    uint32_t count)
{
    uint32_t check;

    if (length <= CHECK)
        return -EPROTO;
    memcpy(&check, payload, sizeof(check));
    if (ZSTD_decompressDCtx(unpacker->zstd, contents, count, payload + CHECK, length - CHECK) != count)
        return -EPROTO;
    return crc32c(contents, count) == be32toh(check) ? 0 : -EPROTO;
}

void unpacker_free(struct unpacker *unpacker)
{
    if (unpacker)
        ZSTD_freeDCtx(unpacker->zstd);
    free(unpacker);
}
