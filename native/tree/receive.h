/* wherry-tree receive; see receive.c. */
#ifndef WHERRY_TREE_RECEIVE_H
#define WHERRY_TREE_RECEIVE_H

int tree_receive(const char *directory, const char *staging, const char *socket);

#endif
