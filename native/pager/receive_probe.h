/* Whether this kernel lets `receive` give restored processes their memory. */
#ifndef WHERRY_PAGER_RECEIVE_PROBE_H
#define WHERRY_PAGER_RECEIVE_PROBE_H

/* `wherry-pager receive --probe`: exit code 0, or 1 with the reason on standard error. */
int receive_probe(void);

#endif
