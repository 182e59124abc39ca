/*
 * The user's directories, which a server in the cluster's network has (NFS 4.1). One in each line of `guest->files`:
 *
 *   ADDRESS PATH       mounted at the same PATH
 */
#ifndef WHERRY_GUEST_USER_FILES_H
#define WHERRY_GUEST_USER_FILES_H

#include "guest.h"

/* Mounts them all, once the root is entered and the network is up. Ends the machine, with the reason, when one cannot be mounted. */
void user_files_mount(const struct guest *guest);

#endif
