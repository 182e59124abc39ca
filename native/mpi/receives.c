#include "receives.h"

#include <stdint.h>
#include <stdlib.h>

enum { AT_FIRST = 256 }; /* places, twice as many whenever half are taken; a power of two */

unsigned receives;
static struct receive *kept;
static unsigned places;

static unsigned place_of(word request)
{
    return (unsigned)((uint64_t)request * 0x9e3779b97f4a7c15U >> 32) & (places - 1);
}

static struct receive *find(word request)
{
    unsigned place = place_of(request);

    while (kept[place].request && kept[place].request != request)
        place = (place + 1) & (places - 1);
    return &kept[place];
}

static bool grow(void)
{
    struct receive *old = kept, *more = calloc(places ? 2 * places : AT_FIRST, sizeof *more);
    unsigned count = places;

    if (!more)
        return false;
    kept = more;
    places = count ? 2 * count : AT_FIRST;
    for (unsigned i = 0; i < count; i++)
        if (old[i].request)
            *find(old[i].request) = old[i];
    free(old);
    return true;
}

bool receive_keep(struct receive receive)
{
    struct receive *place;

    if (receives >= places / 2 && !grow())
        return false;
    place = find(receive.request);
    receives += place->request == 0;
    *place = receive;
    return true;
}

const struct receive *receive_of(word request)
{
    const struct receive *found = receives ? find(request) : NULL;

    return found && found->request ? found : NULL;
}

/* Those behind it move up, if they may: none is to be behind an empty place. */
void receive_drop(word request)
{
    struct receive *gone = receives ? find(request) : NULL;
    unsigned place;

    if (!gone || !gone->request)
        return;
    gone->request = 0;
    receives--;
    place = (unsigned)(gone - kept);
    while (place = (place + 1) & (places - 1), kept[place].request) {
        struct receive one = kept[place];

        kept[place].request = 0;
        *find(one.request) = one;
    }
}
