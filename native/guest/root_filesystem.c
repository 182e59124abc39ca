/*
 * See root_filesystem.h. Invariant: nothing on the new root is on a disk, so moving the machine's memory moves all of
 * it.
 */
#include "root_filesystem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util.h"

#define IMAGE "/root.squashfs"

static void mount_at(const char *source, const char *target, const char *kind, unsigned long flags, const char *data)
{
    mkdir(target, 0755);
    if (mount(source, target, kind, flags, data) < 0)
        guest_fail("mount", target, errno);
}

/* A block device that reads the image. */
static void open_loop(char *path, size_t room)
{
    struct loop_config config = {.info = {.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR}};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), image = open(IMAGE, O_RDONLY | O_CLOEXEC);
    int number, device;

    if (control < 0 || image < 0)
        guest_fail("open", control < 0 ? "/dev/loop-control" : IMAGE, errno);
    number = ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0)
        guest_fail("get", "a loop device", errno);
    snprintf(path, room, "/dev/loop%d", number);
    device = open(path, O_RDWR);
    config.fd = (uint32_t)image;
    if (device < 0 || ioctl(device, LOOP_CONFIGURE, &config) < 0)
        guest_fail("read the image through", path, errno);
    close(control);
    close(image);
    /* `device` stays open until wherry-init closes all: the loop would clear itself before it is mounted. */
}

void root_filesystem_enter(void)
{
    static const char *const kept[][2] = {{"/dev", "/root/dev"}, {"/proc", "/root/proc"}, {"/sys", "/root/sys"}};
    char loop[32];

    open_loop(loop, sizeof loop);
    mount_at(loop, "/lower", "squashfs", MS_RDONLY, NULL);
    mount_at("wherry", "/upper", "tmpfs", 0, "mode=755");
    if (mkdir("/upper/files", 0777) < 0 || chmod("/upper/files", 0777) < 0 || mkdir("/upper/work", 0755) < 0)
        guest_fail("make", "/upper/files", errno);
    mount_at("wherry", "/root", "overlay", 0, "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (mount(kept[i][0], kept[i][1], NULL, MS_MOVE, NULL) < 0)
            guest_fail("move to the root", kept[i][0], errno);
    if (chdir("/root") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        guest_fail("enter", "the root", errno);
    mount_at("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=620,ptmxmode=666");
    mount_at("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
}
