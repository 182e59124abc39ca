/*
 * libFuzzer on the stream of a node's files, as wherry-tree receive applies it (tree/wire.h, tree/store.h).
 *
 *   clang -g -O1 -D_GNU_SOURCE -Inative/include -fsanitize=fuzzer,address,undefined native/fuzz/fuzz_tree.c \
 *         native/tree/{store,settle,meta,wire,record}.c native/lib/page_sums.c -o fuzz_tree
 *   ./fuzz_tree -max_len=512          in an empty directory, better of memory
 *
 * Each five bytes of the input are an act: its kind, two numbers of inodes, a name, and how much or where. Names lead out
 * of the directory where they can; links point outside. Kind 10 is a frame whose header is made of the bytes that follow,
 * kind 11 an inode whose payload they are. The invariants: nothing is touched outside of the two directories; damage by
 * one frame is an error and no more; where no act was wrong, the tree that was made has the sum of its records, and
 * the staging directory is empty after the last pass.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tree/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { ACT = 5, ACTS = 60, FIXED = 40, KINDS = 12, LONG_AGO = 1000 };

#define TARGET "../outside/kept" /* of each link, from either directory */

static const char *const NAMES[] = {"a", "b", "c", "d e", "..", ".", "../outside", "a/b", "", "\xff"};
static const mode_t TYPES[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFREG, S_IFDIR, S_IFSOCK};
static struct store store;
static uint64_t inodes;

static void require(int condition)
{
    if (!condition)
        abort();
}

static int apply(char type, uint64_t number, uint64_t at, const void *payload, size_t length)
{
    struct wire_frame frame = {(uint32_t)type, (uint32_t)length, number, at}, back;
    uint8_t header[WIRE_HEADER];
    /* of the exact size, so that reading behind it is seen */
    uint8_t *copy = malloc(length ? length : 1);
    int error;

    require(!!copy);
    if (length)
        memcpy(copy, payload, length);
    wire_encode(&frame, number, wire_sum(copy, length), header);
    require(!wire_check(header, number, copy, length));
    error = wire_decode(header, &back);
    if (!error) {
        require(!memcmp(&frame, &back, sizeof(frame)));
        error = frame.type == 'R' || frame.type == 'E' || frame.type == 'A' ? 0 : store_apply(&store, &frame, copy);
    }
    free(copy);
    return error;
}

static int apply_inode(uint64_t number, mode_t type, uint8_t how)
{
    uint8_t payload[FIXED + sizeof(TARGET)] = {0};
    uint32_t mode = htobe32(type | (how & 0777)), size = htobe32(sizeof(TARGET) - 1);

    memcpy(payload, &mode, sizeof(mode));
    payload[31] = how;
    if (type != S_IFLNK)
        return apply('I', number, 0, payload, FIXED);
    memcpy(payload + 32, &size, sizeof(size));
    memcpy(payload + FIXED, TARGET, sizeof(TARGET));
    return apply('I', number, 0, payload, sizeof(payload));
}

static int apply_data(uint64_t number, uint8_t where, uint8_t what)
{
    static uint8_t pages[4 * PAGE_SUMS_PAGE];

    memset(pages, what, sizeof(pages));
    return apply('D', number, (uint64_t)where * PAGE_SUMS_PAGE, pages, (size_t)(1 + what % 4) * PAGE_SUMS_PAGE);
}

static int apply_raw(const uint8_t *bytes, size_t count)
{
    struct wire_frame frame;
    uint8_t header[WIRE_HEADER] = {0};
    uint8_t *payload;
    int error;

    memcpy(header + 3, bytes, count < WIRE_HEADER - 3 ? count : WIRE_HEADER - 3);
    if (wire_decode(header, &frame) || frame.type == 'R' || frame.type == 'E' || frame.type == 'A')
        return -EPROTO;
    payload = calloc(1, (size_t)frame.length + 1);
    require(!!payload);
    memcpy(payload, bytes, count < frame.length ? count : frame.length);
    error = store_apply(&store, &frame, payload);
    free(payload);
    return error;
}

static int act(const uint8_t op[ACT], size_t left)
{
    const char *name = NAMES[op[3] % (sizeof(NAMES) / sizeof(NAMES[0]))];
    uint64_t one = 1 + op[1] % (inodes + 1), other = 1 + op[2] % (inodes + 1), hole = htobe64((uint64_t)op[4] * PAGE_SUMS_PAGE);
    int error;

    switch (op[0] % KINDS) {
    case 0:
    case 1:
        error = apply_inode(inodes + 1, TYPES[op[1] % (sizeof(TYPES) / sizeof(TYPES[0]))], op[4]);
        inodes += !error;
        return error;
    case 2:
        return apply_inode(one, TYPES[op[2] % (sizeof(TYPES) / sizeof(TYPES[0]))], op[4]);
    case 3:
        return apply('L', one, other, name, strlen(name));
    case 4:
        return apply('U', one, other, name, strlen(name));
    case 5:
        return apply('X', one, 0, NULL, 0);
    case 6:
        return apply('S', one, (uint64_t)op[4] << (op[3] % 56), NULL, 0);
    case 7:
        return apply_data(one, op[3], op[4]);
    case 8:
        return apply('H', one, (uint64_t)op[3] * PAGE_SUMS_PAGE, &hole, sizeof(hole));
    case 9:
        return store_settle(&store);
    case 10:
        return apply_raw(op + ACT, left);
    default:
        error = apply('I', inodes + 1, 0, op + ACT, left);
        inodes += !error;
        return error;
    }
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static void check_outside(void)
{
    char text[8] = {0};
    int file = open("t/outside/kept", O_RDONLY);
    struct stat status;

    require(file >= 0 && read(file, text, sizeof(text)) == 4 && !strcmp(text, "kept"));
    require(!fstat(file, &status) && status.st_nlink == 1 && status.st_mode == (S_IFREG | 0604));
    require(status.st_mtim.tv_sec == LONG_AGO && status.st_size == 4);
    close(file);
    require(!stat("t", &status) && status.st_nlink == 5); /* three directories in it, and nothing else */
    require(!unlink("t/outside/kept") && !rmdir("t/outside"));
}

static void start(void)
{
    const struct timespec times[] = {{.tv_sec = LONG_AGO}, {.tv_sec = LONG_AGO}};
    int file;

    nftw("t", remove_one, 16, FTW_DEPTH | FTW_PHYS);
    require(!mkdir("t", 0700) && !mkdir("t/root", 0700) && !mkdir("t/staging", 0700) && !mkdir("t/outside", 0700));
    file = open("t/outside/kept", O_CREAT | O_WRONLY, 0604);
    require(file >= 0 && write(file, "kept", 4) == 4 && !fchmod(file, 0604) && !futimens(file, times));
    close(file);
    store.root = open("t/root", O_RDONLY | O_DIRECTORY);
    store.staging = open("t/staging", O_RDONLY | O_DIRECTORY);
    require(store.root >= 0 && store.staging >= 0);
    inodes = 0;
}

/* The end of the last pass with the right sum, which is the store's own. */
static void finish(void)
{
    struct page_sum all = {0};
    uint64_t have = 0;
    int error;

    for (size_t i = 0; i < store.count; i++)
        if (store.items[i]) {
            all.low += store.items[i]->record.low + store.items[i]->names_record.low;
            all.high += store.items[i]->record.high + store.items[i]->names_record.high;
            have += 1 + store.items[i]->names_count;
        }
    error = store_finish(&store, have, all);
    for (size_t i = 0; i < STORE_FILES; i++)
        require(!store.files[i].number); /* a file that is open to be written cannot be executed */
    switch (error) {
    case 0:
        require(!rmdir("t/staging") && !mkdir("t/staging", 0700));
        break;
    case -EBADMSG: /* something has no name */
        break;
    default:
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    int error = 0;

    start();
    for (size_t i = 0; i < ACTS && (i + 1) * ACT <= count; i++)
        error |= act(bytes + i * ACT, count - (i + 1) * ACT);
    error |= store_settle(&store);
    if (!error)
        finish();
    close(store.root);
    close(store.staging);
    store_free(&store);
    check_outside();
    return 0;
}
