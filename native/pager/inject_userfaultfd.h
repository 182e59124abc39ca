/* A userfaultfd of another process: made inside it, held here. */
#ifndef WHERRY_PAGER_INJECT_USERFAULTFD_H
#define WHERRY_PAGER_INJECT_USERFAULTFD_H

#include <stddef.h>

/*
 * Has the running process make a userfaultfd of its memory (write protection, asynchronous), takes it over and closes
 * it there; nothing of that is left in it. Returns the descriptor or negative errno; then `why` has the step that
 * failed, in words.
 */
int inject_userfaultfd(int pid, char *why, size_t size);

/* Switches asynchronous write protection on for a userfaultfd. 0 or negative errno. */
int userfaultfd_set_up(int userfaultfd);

#endif
