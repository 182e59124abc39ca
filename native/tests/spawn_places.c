/*
 * spawn_places NUMBER HOST SECOND [FILE]: spawns so many of itself where the info key host names (-: none), or by
 * MPI_Comm_spawn_multiple as many again with SECOND. Prints the nodes of all. With FILE all sum until it exists.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 64 };

static MPI_Info info_of(const char *host)
{
    MPI_Info info = MPI_INFO_NULL;

    if (strcmp(host, "-")) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "host", host);
    }
    return info;
}

static MPI_Comm spawned(char **words)
{
    const int processes[] = {atoi(words[1]), atoi(words[1])};
    char *commands[] = {words[0], words[0]}, *rest[] = {"child", words[4], NULL}, **argvs[] = {rest, rest};
    MPI_Info infos[] = {info_of(words[2]), info_of(words[3])};
    MPI_Comm made;

    if (strcmp(words[3], "-"))
        MPI_Comm_spawn_multiple(2, commands, argvs, processes, infos, 0, MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    else
        MPI_Comm_spawn(words[0], rest, processes[0], infos[0], 0, MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    return made;
}

static void print_nodes(MPI_Comm all)
{
    char own[NAME] = "", *names;
    int size, rank;

    gethostname(own, sizeof own - 1);
    MPI_Comm_size(all, &size);
    MPI_Comm_rank(all, &rank);
    names = malloc((size_t)size * NAME);
    MPI_Gather(own, NAME, MPI_CHAR, names, NAME, MPI_CHAR, 0, all);
    for (int i = 0; rank == 0 && i < size; i++)
        printf("%s%s", names + i * NAME, i == size - 1 ? "\n" : " ");
    fflush(stdout);
    free(names);
}

int main(int count, char **words)
{
    MPI_Comm parent, other, all;
    int mine, least = 0, sums = 0;
    const char *file;

    MPI_Init(&count, &words);
    MPI_Comm_get_parent(&parent);
    file = parent == MPI_COMM_NULL ? words[4] : words[2];
    other = parent == MPI_COMM_NULL ? spawned(words) : parent;
    MPI_Intercomm_merge(other, parent != MPI_COMM_NULL, &all);
    print_nodes(all);
    while (file && !least) {
        mine = access(file, F_OK) == 0;
        MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, all);
        usleep(1000);
        sums++;
    }
    if (file && parent == MPI_COMM_NULL)
        printf("summed %s\n", sums > 0 ? "right" : "never");
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&other);
    MPI_Finalize();
    return 0;
}
