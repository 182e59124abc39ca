/*
 * libwherry-remap.so: mremap works over mappings that only a move keeps apart (LD_PRELOAD; needs no MPI to build).
 *
 * While a move tracks a process (pager/tracker.h), a new mapping beside a tracked one does not merge with it,
 * and once both have pages Linux never merges them. mremap over the two, which are one for the program, then fails with
 * EFAULT. Here it is done piece by piece:
 *
 *      [piece | piece | piece]      the last can grow where it is: done
 *       \_____   \_____  \_____     else a place for all is reserved, and
 *      [piece | piece | piece+++]   each piece is moved there, the last one growing
 *
 * Invariants: a call that the kernel grants is the kernel's own. Only private memory without a file, of one protection,
 * is taken together; all else fails as it did. A call that fails leaves every piece where it was.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { PIECES = 256, TEXT = 8192, PROTECTION = 4 };

struct range {
    uintptr_t start, end;
};

/* Of a range in one process: mappings without a gap. */
struct pieces {
    struct range list[PIECES];
    int count;
    char protection[PROTECTION + 1];
};

static void *remap(uintptr_t old, size_t old_size, size_t size, int flags, uintptr_t target)
{
    return (void *)syscall(SYS_mremap, old, old_size, size, flags, target); // NOLINT(performance-no-int-to-ptr)
}

/* Takes the part of a mapping that is in the range. False: it is none that could be one with those before. */
static bool take(struct pieces *pieces, struct range range, const char *line)
{
    unsigned long start, end, inode;
    char protection[PROTECTION + 1];
    uintptr_t reached = pieces->count ? pieces->list[pieces->count - 1].end : range.start;

    if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &start, &end, protection, &inode) != 4)
        return false;
    if (end <= range.start || start >= range.end)
        return true;
    if (pieces->count == PIECES || start > reached || inode || protection[3] != 'p' ||
        (pieces->count && strcmp(protection, pieces->protection)))
        return false;
    memcpy(pieces->protection, protection, sizeof(protection));
    pieces->list[pieces->count++] = (struct range){reached, end < range.end ? end : range.end};
    return true;
}

/* Reads /proc/self/maps, without memory of its own. False: this is not memory that could be one mapping. */
static bool read_pieces(struct pieces *pieces, struct range range)
{
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char text[TEXT + 1];
    size_t have = 0;
    bool right = maps >= 0;

    pieces->count = 0;
    while (right) {
        ssize_t got = read(maps, text + have, TEXT - have);
        char *line = text, *end;

        if (got <= 0)
            break;
        text[have += (size_t)got] = '\0';
        while (right && (end = strchr(line, '\n'))) {
            *end = '\0';
            right = take(pieces, range, line);
            line = end + 1;
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
        right = right && have < TEXT; /* else a line that is longer than any path */
    }
    if (maps >= 0)
        close(maps);
    return right && pieces->count > 1 && pieces->list[pieces->count - 1].end == range.end;
}

/* Moves each piece to where the whole is to be; the last gets `more` bytes. 0 or errno; then all are where they were. */
static int move_pieces(const struct pieces *pieces, uintptr_t target, size_t more)
{
    uintptr_t first = pieces->list[0].start;

    for (int i = 0; i < pieces->count; i++) {
        struct range piece = pieces->list[i];
        size_t size = piece.end - piece.start, grown = i == pieces->count - 1 ? size + more : size;

        if (remap(piece.start, size, grown, MREMAP_MAYMOVE | MREMAP_FIXED, target + (piece.start - first)) != MAP_FAILED)
            continue;
        int error = errno;
        while (i-- > 0) {
            piece = pieces->list[i];
            size = piece.end - piece.start;
            remap(target + (piece.start - first), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, piece.start);
        }
        return error;
    }
    return 0;
}

static void *remap_pieces(const struct pieces *pieces, size_t size, int flags, void *wanted)
{
    struct range all = {pieces->list[0].start, pieces->list[pieces->count - 1].end};
    struct range last = pieces->list[pieces->count - 1];
    size_t more = size - (all.end - all.start);
    void *target = wanted;
    int error;

    if (!(flags & MREMAP_FIXED)) {
        if (remap(last.start, last.end - last.start, last.end - last.start + more, 0, 0) != MAP_FAILED)
            return (void *)all.start; // NOLINT(performance-no-int-to-ptr)
        if (!(flags & MREMAP_MAYMOVE))
            return MAP_FAILED;
        target = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (target == MAP_FAILED)
            return MAP_FAILED;
    }
    if (!(error = move_pieces(pieces, (uintptr_t)target, more)))
        return target;
    if (!(flags & MREMAP_FIXED))
        munmap(target, size);
    errno = error;
    return MAP_FAILED;
}

/* The kernel does not allow a target within the range that is moved, nor one without MREMAP_MAYMOVE. */
static bool may_move_to(struct range old, size_t size, int flags, const void *wanted)
{
    uintptr_t target = (uintptr_t)wanted;

    return !(flags & MREMAP_FIXED) || ((flags & MREMAP_MAYMOVE) && (target >= old.end || target + size <= old.start));
}

static size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (size + page - 1) / page * page;
}

static void *remap_by_pieces(struct range range, size_t size, int flags, void *wanted)
{
    struct pieces pieces;

    if (!may_move_to(range, size, flags, wanted) || !read_pieces(&pieces, range)) {
        errno = EFAULT;
        return MAP_FAILED;
    }
    if (size < range.end - range.start) { /* the kernel, too, cuts off the end first */
        if (munmap((void *)(range.start + size), range.end - range.start - size)) // NOLINT(performance-no-int-to-ptr)
            return MAP_FAILED;
        return mremap((void *)range.start, size, size, flags, wanted); // NOLINT(performance-no-int-to-ptr)
    }
    return remap_pieces(&pieces, size, flags, wanted);
}

void *mremap(void *old, size_t old_size, size_t size, int flags, ...)
{
    struct range range = {(uintptr_t)old, (uintptr_t)old + whole_pages(old_size)};
    void *wanted = NULL, *found;
    int before = errno;

    if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) {
        va_list more;

        va_start(more, flags);
        wanted = va_arg(more, void *);
        va_end(more);
    }
    found = remap((uintptr_t)old, old_size, size, flags, (uintptr_t)wanted);
    if (found != MAP_FAILED || errno != EFAULT || !size || range.end <= range.start || flags & MREMAP_DONTUNMAP)
        return found;
    found = remap_by_pieces(range, whole_pages(size), flags, wanted);
    if (found != MAP_FAILED)
        errno = before;
    return found;
}
