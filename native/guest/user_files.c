/* See user_files.h. Invariant: a node that should have its user's directories has all of them, or does not run. */
#include "user_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel_modules.h"
#include "util.h"

#define MODULES "/usr/lib/wherry/modules" /* wherry.node.vm.image.root */

enum { TRIES = 60, PAUSE_MS = 500 }; /* the network may take a moment until frames pass */

/* Every directory of the path that is not there; as all others of the root, open to the machine's one user. */
static void make_path(char *path)
{
    for (char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
        if (at)
            *at = 0;
        if (mkdir(path, 0777) == 0)
            chmod(path, 0777);
        if (!at)
            return;
        *at = '/';
    }
}

static void mount_one(const struct guest *guest, const char *server, char *path)
{
    char source[4200], options[256], own[INET_ADDRSTRLEN];

    inet_ntop(AF_INET, &guest->address, own, sizeof own);
    if (snprintf(source, sizeof source, "%s:%s", server, path) >= (int)sizeof source)
        guest_fail("mount", path, ENAMETOOLONG);
    /* Others change the files, too, here and on the server's machine: remembered attributes are seconds old. */
    snprintf(options, sizeof options,
             "vers=4.1,proto=tcp,sec=sys,hard,acregmin=1,acregmax=3,acdirmin=1,acdirmax=3,lookupcache=positive,"
             "addr=%s,clientaddr=%s", server, own);
    make_path(path);
    for (int i = 0; mount(source, path, "nfs4", MS_NOSUID | MS_NODEV, options) < 0; i++) {
        if (i == TRIES)
            guest_fail("mount the user's directory", source, errno);
        usleep(PAUSE_MS * 1000);
    }
}

void user_files_mount(const struct guest *guest)
{
    char *rest = guest->files, *line;

    if (rest)
        kernel_modules_load(MODULES, "nfsv4");
    while ((line = strsep(&rest, "\n"))) {
        char *path = strchr(line, ' ');

        if (!*line)
            continue;
        if (!path || path[1] != '/')
            guest_fail("mount the user's directory", line, EINVAL);
        *path = 0;
        mount_one(guest, line, path + 1);
    }
}
