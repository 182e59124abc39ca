/*
 * Counts of the system while messages are exchanged: read before and after, the difference is theirs. In a virtual
 * machine these are the guest's counters; elsewhere those of the whole machine but for the interface and the process.
 */
#pragma once

enum counter {
    COUNTER_CARD_INTERRUPTS, /* of the interface's card; unknown where it has none (loopback, a pair of veth) */
    COUNTER_INTERRUPTS, /* of all devices */
    COUNTER_SOFTIRQS, /* NET_RX and NET_TX */
    COUNTER_SWITCHES, /* between all processes */
    COUNTER_OWN_SWITCHES, /* of this process */
    COUNTER_FRAMES, /* that the interface sent: received ones are another rank's */
    COUNTER_BYTES, /* likewise */
    COUNTERS
};

/* Names as they are printed. */
extern const char *const counter_names[COUNTERS];

/* Reads all; -1 for counters that this system does not have. */
void counters_read(const char *interface, long long values[COUNTERS]);
