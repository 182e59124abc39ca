/* The inodes, and their names; see source.h. */
#include <errno.h>
#include <string.h>

#include "source.h"

typedef int (*name_act)(struct source *source, const struct inode *directory, const char *name, const struct inode *inode);

static int send_name(struct source *source, char type, uint64_t directory, const char *name, uint64_t inode)
{
    return output_put(&source->output, type, directory, inode, name, (uint32_t)strlen(name));
}

static int send_unlink(struct source *source, const struct inode *directory, const char *name, const struct inode *inode)
{
    return send_name(source, 'U', directory->number, name, inode->number);
}

static int send_link(struct source *source, const struct inode *directory, const char *name, const struct inode *inode)
{
    return send_name(source, 'L', directory->number, name, inode->number);
}

/* Acts on each name that only `names` has, or for which `others` has another inode. Both are in order. */
static int each_only_in(struct source *source, const struct inode *directory, const struct names *names,
                        const struct names *others, name_act act)
{
    int error = 0;

    for (size_t i = 0, j = 0; i < names->count && !error; i++) {
        const char *text = name_text(names, &names->list[i]);

        while (j < others->count && strcmp(name_text(others, &others->list[j]), text) < 0)
            j++;
        if (j == others->count || strcmp(name_text(others, &others->list[j]), text) ||
            others->list[j].inode != names->list[i].inode)
            error = act(source, directory, text, names->list[i].inode);
    }
    return error;
}

/* A directory that is gone has no names any more, also where its inode was found anew before it was gone. */
static int send_unlinks(struct source *source, struct inode *directory)
{
    if (directory->seen != source->pass)
        names_free(&directory->found);
    return each_only_in(source, directory, &directory->known, &directory->found, send_unlink);
}

int send_size(struct source *source, struct inode *file, uint64_t size)
{
    if (size < file->size)
        page_sums_clear(&file->sums, size / PAGE_SUMS_PAGE, UINT64_MAX / PAGE_SUMS_PAGE);
    if (size == file->size)
        return 0;
    file->size = size;
    return output_put(&source->output, 'S', file->number, size, NULL, 0);
}

/* Inodes that take room at the destination go before any come. */
static int send_gone(struct source *source)
{
    struct inodes *inodes = &source->inodes;
    int error = 0;

    for (size_t i = 0; i < inodes->count && !error; i++)
        error = send_unlinks(source, inodes->list[i]);
    for (size_t i = 0; i < inodes->count && !error; i++) {
        struct inode *inode = inodes->list[i];
        uint64_t size = (uint64_t)inode->status.st_size;

        if (inode->seen != source->pass && inode->number)
            error = output_put(&source->output, 'X', inode->number, 0, NULL, 0);
        else if (S_ISREG(inode->status.st_mode) && size < inode->size)
            error = send_size(source, inode, size);
    }
    return error;
}

static int send_metas(struct source *source)
{
    int error = 0;

    for (size_t i = 0; i < source->inodes.count && !error; i++) {
        struct inode *inode = source->inodes.list[i];

        if (inode->seen != source->pass || inode->is_sent)
            continue;
        if (!inode->number && source->numbers + 1 == WIRE_NUMBERS)
            return -EXFULL;
        if (!inode->number)
            inode->number = ++source->numbers;
        error = output_put(&source->output, 'I', inode->number, 0, inode->meta.data, (uint32_t)inode->meta.count);
        inode->is_sent = true;
    }
    return error;
}

static int send_links(struct source *source)
{
    int error = 0;

    for (size_t i = 0; i < source->inodes.count && !error; i++) {
        struct inode *directory = source->inodes.list[i];

        if (directory->seen == source->pass)
            error = each_only_in(source, directory, &directory->found, &directory->known, send_link);
    }
    return error;
}

static void know_found(struct source *source)
{
    for (size_t i = 0; i < source->inodes.count; i++) {
        struct inode *directory = source->inodes.list[i];

        names_free(&directory->known);
        directory->known = directory->found;
        directory->found = (struct names){0};
    }
    inodes_sweep(&source->inodes, source->pass);
}

int send_structure(struct source *source)
{
    int error = send_gone(source);

    if (!error)
        error = send_metas(source);
    if (!error)
        error = send_links(source);
    if (!error)
        know_found(source);
    return error;
}
