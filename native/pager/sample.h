/* Measures the writes of a node for a while; nothing is sent. */
#ifndef WHERRY_PAGER_SAMPLE_H
#define WHERRY_PAGER_SAMPLE_H

int sample_run(int argc, char **argv);

#endif
