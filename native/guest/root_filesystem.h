/*
 * The root of the machine.
 *
 *   RAM disk (rootfs)   /init  /modules  /root.squashfs
 *                                           | loop
 *   /lower  squashfs, read-only  <----------+      read and unpacked page by page, as it is used
 *   /upper  tmpfs: the node's writes; it travels with the machine's memory
 *   /root   overlay of the two, which becomes /
 */
#ifndef WHERRY_GUEST_ROOT_FILESYSTEM_H
#define WHERRY_GUEST_ROOT_FILESYSTEM_H

/* Puts the root together and makes it / for this process; /dev, /proc and /sys come along. Or ends the machine. */
void root_filesystem_enter(void);

#endif
