/* criu_terminals: the unread bytes of pseudo-terminals (criu.c). */
#ifndef WHERRY_PRELOAD_CRIU_TERMINALS_H
#define WHERRY_PRELOAD_CRIU_TERMINALS_H

#include <stdbool.h>

#define TERMINALS "terminals" /* among the images: their bytes, a line for each that has some */

/* The number of the pseudo-terminal of a descriptor, be it by /dev/tty; false: another kind. Keeps errno. */
bool identify_terminal(int fd, unsigned *index, bool *is_master);
/* A dump: CRIU looks at the settings of a descriptor, the first one of each end of a terminal. */
void meet_terminal(int fd);
/* At the end of a dump: the bytes in the terminals go with the images in the directory. False with errno. */
bool note_terminals(int directory);
/* A restore: reads the bytes to put back. */
void learn_terminals(int directory);
/* A master has its settings again: puts back the terminal's bytes. False with errno. */
bool fill_terminal(int fd);

#endif
