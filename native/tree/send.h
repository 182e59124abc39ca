/* wherry-tree send; see send.c. */
#ifndef WHERRY_TREE_SEND_H
#define WHERRY_TREE_SEND_H

#include <stdbool.h>

int tree_send(const char *directory, const char *socket, bool is_on_disk);

#endif
