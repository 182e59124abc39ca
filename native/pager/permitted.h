/* Finds the processes that may use a part of the processor's state that is to be asked for, as AMX is. */
#ifndef WHERRY_PAGER_PERMITTED_H
#define WHERRY_PAGER_PERMITTED_H

int permitted_run(int argc, char **argv);

#endif
