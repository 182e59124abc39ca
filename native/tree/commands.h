/* Common parts of the commands of wherry-tree. */
#ifndef WHERRY_TREE_COMMANDS_H
#define WHERRY_TREE_COMMANDS_H

enum { FAILED = 1, WRONG_USAGE = 2, CONNECTION_LOST = 3 };

/* Prints the failure on standard error, with the reason. FAILED. */
int tree_failed(const char *what, int error);
/* An open descriptor, or -1. */
int tree_descriptor(const char *text);

#endif
