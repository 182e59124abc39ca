/*
 * wherry-pager receive --socket PATH --tasks FILE --stream FD [--stream FD ...] [--key FD]
 *
 * PATH is where CRIU looks for `lazy-pages.socket`, FILE the cgroup.procs of the node here, each FD a connected socket
 * on which `wherry-pager send` speaks stream.h, sealed by the 32 bytes that --key's descriptor gives. Says on standard
 * output:
 *
 *   ready                        listens at PATH
 *   round N, last N              round N, or the last pass, has come on all connections
 *   restored PROCESSES           CRIU has handed over so many descriptors
 *   objects OBJECTS BYTES MILLISECONDS   written into shared memory (object_fill.h)
 *   fetched ASKED OTHERS MILLISECONDS    with post-copy: bytes that came after the thaw, and when the last of them did
 *   filled BYTES MILLISECONDS    copied since then; nothing is missing any more, and it exits with 0
 *
 * Standard input: `objects` when CRIU has restored the processes, `thawed` when the node runs. Its end, or SIGTERM,
 * ends `receive` before the first descriptor has come; later the node needs it, so it continues to the end. SIGKILL is
 * right at any time: before, nothing is lost; later, the guard (guard.h) kills the node. Exits with 3 when a connection
 * ends too early, with 4 when a frame breaks a rule, with 5 when pages that come later (fetch.h) do not: --fetch-stall
 * SECONDS without any after the thaw, or --fetch-total.
 *
 *   thread     reads              does
 *   main       stdin, CRIU, all   answers faults, follows events (lazy.h)
 *              userfaultfds
 *   receiver   a connection       puts frames into the cache (receiver.h); ends with the last pass
 *   filler                        copies in the background (fill.h)
 *   asker                         asks the source for pages (fetch.h)
 *
 * For tests: --fill-rate BYTES_PER_SECOND and --fill-threads NUMBER.
 */
#ifndef WHERRY_PAGER_RECEIVE_H
#define WHERRY_PAGER_RECEIVE_H

int receive_run(int argc, char **argv);

#endif
