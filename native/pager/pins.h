/*
 * Memory that the kernel writes through its own pointers, "pinned": by reading a file with O_DIRECT, or by
 * process_vm_writev(2) of another process. A page that is protected while it is pinned gets its new contents without a
 * fault, so no protection reports that write.
 */
#ifndef WHERRY_PAGER_PINS_H
#define WHERRY_PAGER_PINS_H

#include <stdbool.h>

/*
 * Whether a running process may have pinned memory: it has a file open with O_DIRECT. Of a node that moves it has no
 * asynchronous contexts, rings or devices, which could keep memory pinned as well (wherry.node.container.movable).
 */
bool pins_may_be(int pid);
/* Whether one of its threads is in process_vm_writev(2) and sleeps there, so that memory of any process may be pinned. */
bool pins_others(int pid);

#endif
