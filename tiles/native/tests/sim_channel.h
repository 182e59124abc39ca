/*
 * A network that is only a queue for each direction: frames arrive in order and once, as a channel promises, but at any
 * time, and memory of the sender (channel_send_iov) is read at any time before.
 */
#ifndef WHERRY_MANYCORE_TESTS_SIM_CHANNEL_H
#define WHERRY_MANYCORE_TESTS_SIM_CHANNEL_H

#include "sim.h"

/* Delivers the next frame, if there is one; a dead host drops it. */
void sim_deliver(uint32_t from, uint32_t to);
void sim_drop_all(uint32_t from, uint32_t to);

#endif
