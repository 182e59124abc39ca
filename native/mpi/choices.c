#include "choices.h"

#include "ticks.h"

#include <stdlib.h>
#include <string.h>

enum {
    CLASSES = 14,        /* of sizes: each four times the one before */
    TRIES = 3,           /* of each way */
    MARGIN = 10,         /* ours must take less by this part: a smaller difference may reverse */
    SURE = 8192,         /* bytes of an allgather that is not measured */
    OURS = 0, THEIRS = 1,
};

/* Of an operation and a class of sizes. */
struct choice {
    unsigned calls; /* tried so far */
    bool made;
    int better;
    uint64_t least[2]; /* ns; 0: the clock went backwards each time */
};

struct choices {
    struct choice of[MEASURED][CLASSES];
};

/* The try that is under way, of which choices. Times of ranks are compared, and their counters' rates differ. */
static struct choices *trying;
static struct choice *tried;
static int way;
static uint64_t begun; /* ns */

struct choices *choices_new(void)
{
    return calloc(1, sizeof(struct choices));
}

/* A try under way is no measure for later choices. */
static void forget_try(const struct choices *choices)
{
    if (trying == choices)
        trying = NULL;
}

void choices_free(struct choices *choices)
{
    forget_try(choices);
    free(choices);
}

void choices_again(struct choices *choices)
{
    forget_try(choices);
    for (int operation = 0; operation < MEASURED; operation++)
        for (int class = 0; class < CLASSES; class ++) {
            struct choice *one = &choices->of[operation][class];

            if (!one->made || one->better == THEIRS)
                *one = (struct choice){0};
        }
}

static int class_of(int64_t bytes)
{
    int bits = bytes > 0 ? 64 - __builtin_clzll((unsigned long long)bytes) : 0, class = bits / 2;

    return class < CLASSES ? class : CLASSES - 1;
}

/* Compares the times of all ranks; ours where that is impossible. */
static int compare(const struct choice *one, word across)
{
    uint64_t longest[2] = {0};

    if (mpi.allreduce((word)one->least, (word)longest, 2, mpi.unsigned_long, mpi.maximum, across))
        return OURS;
    return longest[OURS] < longest[THEIRS] / MARGIN * (MARGIN - 1) ? OURS : THEIRS;
}

/* By sites, however long it takes. */
static bool is_sure(enum operation operation, int64_t bytes)
{
    return operation == ALLGATHER && bytes <= SURE;
}

bool choices_tries(const struct choices *choices, enum operation operation, int64_t bytes)
{
    const struct choice *one = &choices->of[operation][class_of(bytes)];

    return !is_sure(operation, bytes) && !one->made && one->calls < 2 * TRIES;
}

bool choices_by_sites(struct choices *choices, enum operation operation, int64_t bytes, word across)
{
    struct choice *one = &choices->of[operation][class_of(bytes)];

    if (is_sure(operation, bytes))
        return true;
    if (!one->made && one->calls == 2 * TRIES) {
        one->better = compare(one, across);
        one->made = true;
    }
    if (one->made)
        return one->better == OURS;
    trying = choices;
    tried = one;
    way = one->calls++ % 2 ? THEIRS : OURS;
    begun = nanoseconds(CLOCK_MONOTONIC);
    return way == OURS;
}

void choices_end(void)
{
    uint64_t now, took;

    if (!trying)
        return;
    trying = NULL;
    now = nanoseconds(CLOCK_MONOTONIC);
    took = now > begun ? now - begun : 0; /* a move may set the clock back */
    if (!tried->least[way] || (took && took < tried->least[way]))
        tried->least[way] = took;
}
