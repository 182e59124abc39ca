/* wherry-tree send; see send.c. */
#ifndef WHERRY_TREE_SEND_H
#define WHERRY_TREE_SEND_H

int tree_send(const char *directory, const char *socket);

#endif
