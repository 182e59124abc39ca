/* One connection of the sender (sender.h): gathers frames, compresses and seals them, and sends them together. */
#ifndef WHERRY_PAGER_OUTGOING_H
#define WHERRY_PAGER_OUTGOING_H

#include <stdbool.h>
#include <sys/uio.h>

#include "compress.h"
#include "frame_seal.h"
#include "read_pages.h"
#include "stream.h"

enum {
    OUTGOING_FRAMES_MAX = 2 * RANGES_MAX, /* of a batch: each page in its own frame, and each range of zeros */
    OUTGOING_PIECES_MAX = OUTGOING_FRAMES_MAX + STREAM_PAGES_MAX,
};

struct outgoing {
    int socket;
    uint32_t sequence, received; /* frames */
    struct packer *packer;           /* NULL: nothing is compressed */
    struct frame_seal *seal, *opens; /* NULL: nothing is sealed; `opens` is for frames that come back */
    uint8_t *packed;                 /* as much room as the pages of a batch have */
    size_t packed_count;
    uint8_t headers[OUTGOING_FRAMES_MAX][SEALED_HEADER + FRAME_TAG];
    struct iovec pieces[OUTGOING_PIECES_MAX];
    int frames, count, error; /* that are to be sent at once: frames, pieces; the first error of one */
    uint64_t bytes;           /* sent */
};

/* Takes over a connected socket. `key` is NULL for frames that are not sealed. 0 or negative errno. */
int outgoing_open(struct outgoing *outgoing, int socket, unsigned number, const uint8_t *key, bool compresses);
/* Adds a frame; its payload stays where it is until it is sent, and may be encrypted there. */
void outgoing_put(struct outgoing *outgoing, struct stream_frame frame, uint8_t *payload);
/* Sends the added frames. 0 or negative errno. */
int outgoing_send(struct outgoing *outgoing);
/* Reads the next frame that comes back, which has no payload. 0 or negative errno. */
int outgoing_receive(struct outgoing *outgoing, struct stream_frame *frame);

#endif
