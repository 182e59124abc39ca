/* `wherry-pager send`; see main.c. */
#ifndef WHERRY_PAGER_SEND_H
#define WHERRY_PAGER_SEND_H

int send_run(int argc, char **argv);

#endif
