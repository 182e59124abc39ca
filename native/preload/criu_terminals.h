/* criu_terminals: what is in pseudo-terminals that nobody has read (criu.c). */
#ifndef WHERRY_PRELOAD_CRIU_TERMINALS_H
#define WHERRY_PRELOAD_CRIU_TERMINALS_H

#define TERMINALS "terminals" /* among the images: what CRIU does not carry of them, a line for each end */

/* A dump: the directory of the images. */
void note_terminals_in(int directory);
/* A restore: the same. */
void learn_terminals(int directory);

#endif
