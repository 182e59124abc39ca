/*
 * The interface of user programs and the kernel of a tile: addresses, limits, kernel calls. Nothing else is shared.
 *
 *   0x3ffff000  gate page, read-only: one pointer, to the kernel's entry
 *   0x40000000  user region, 2 MiB, the same in every tile
 *               +0          image head | text | rodata | data | bss | pages grown at run time (up to the limit)
 *               +ARGUMENTS  one page: argc, argv, strings
 *               +STACKS     18 stacks of 32 KiB, the first page of each is a guard; thread slot 0 has the highest
 *   0x40200000  end; nothing is mapped here
 *
 * A kernel call is the seven bytes of `call *0x3ffff000` with the number in rdi and up to five words in rsi, rdx, rcx,
 * r8, r9; the answer is in rax, a negative errno for an error. A call that must wait is not kept on any stack: the
 * thread's context is put back to those seven bytes, and when there is a reason to try again it executes them again.
 */
#ifndef WHERRY_MANYCORE_ABI_ABI_H
#define WHERRY_MANYCORE_ABI_ABI_H

#define TILE_ABI 3                     /* changes with anything in this file */
#define TILE_MAGIC 0x656c697479727268  /* "hrrytile", little-endian */
#define GATE_ADDRESS 0x3ffff000
#define GATE_CALL_SIZE 7               /* bytes of the call instruction */
#define USER_BASE 0x40000000
#define USER_SIZE 0x200000
#define PAGE_SIZE 0x1000
#define THREAD_MAX 18                  /* the first thread included */
#define STACK_SIZE 0x8000              /* its guard page included */
#define STACKS_OFFSET (USER_SIZE - THREAD_MAX * STACK_SIZE)
#define ARGUMENTS_OFFSET (STACKS_OFFSET - PAGE_SIZE)
#define ARGUMENT_MAX 16                /* words of argv, the program's name included */
#define MAIL_SIZE 128                  /* bytes in a mailbox message */
#define PORT_MAX 32                    /* mailbox ports of a tile process */
#define PORTAL_MAX 8                   /* portals of a tile process */
#define SYNC_MAX 16                    /* syncs of a tile process */
#define OPERATION_MAX 32               /* sends and receives of a tile process that run beside it */
#define CONSOLE_PROCESS 0              /* the name server; its port 0 is everybody's console */

#define SERVER_PORT 1        /* where the name server takes requests */
#define SERVER_REPLY_PORT 31 /* where the library takes its answers */
#define SERVER_LINK 0
#define SERVER_UNLINK 1
#define SERVER_FIND 2
#define SERVER_AWAIT 3       /* answered when somebody links the name */
#define SERVER_ABORT 4       /* ends all ranks of the sender's program; not answered */

#define CALL_SELF 0          /* () -> thread id */
#define CALL_CREATE 1        /* (entry, function, argument) -> thread id; -EAGAIN: 18 threads */
#define CALL_THREAD_EXIT 2   /* (value) */
#define CALL_JOIN 3          /* (thread id, long *value or 0); -ESRCH, -EDEADLK */
#define CALL_YIELD 4         /* () */
#define CALL_AFFINITY 5      /* (mask of cores 1..15, bit 1 is core 1) */
#define CALL_WORD_WAIT 6     /* (int *word, value): waits while *word == value */
#define CALL_WORD_WAKE 7     /* (int *word, count) -> threads woken */
#define CALL_CLOCK 8         /* () -> nanoseconds of the host's monotonic clock */
#define CALL_GROW 9          /* (pages) -> address of the first new page; -ENOMEM */
#define CALL_MAIL_SEND 10    /* (process, port, bytes, size) -> size; waits while the port is full; -ESRCH */
#define CALL_MAIL_RECEIVE 11 /* (port, bytes, room, struct mail_from *) -> size; waits for a message */
#define CALL_INFO 12         /* (what, of which) */
#define CALL_MOVE 13         /* (tile, mode): returns 0 on the other tile, or an error on this one */
#define CALL_EXIT 14         /* (status): ends the tile process */
#define CALL_SYNC_SIGNAL 15  /* (sync, set of processes); -ESRCH */
#define CALL_SYNC_WAIT 16    /* (sync, set of processes): waits for a signal of each; -ESRCH */
#define CALL_ALLOW 17        /* (portal, process, ticket, size); -EBUSY: bytes allowed before are not received */
#define CALL_START 18        /* (START_..., process, port, bytes, size) -> operation; -EAGAIN: there are 32 */
#define CALL_FINISH 19       /* (operation, struct mail_from *) -> size, or its error; -EAGAIN: not done */
#define CALL_WAIT 20         /* (set of operations) -> set of the done ones; waits for the first */
#define CALL_FREEZE 21       /* (): when it returns, no other thread of the process runs on any core, nor will before */
#define CALL_UNFREEZE 22     /* (), by the same thread; -EPERM */
#define CALL_COUNT 23

/* The port word of a portal is port | ticket << 8. Of a receive, the process is not looked at. */
#define START_MAIL_SEND 0
#define START_MAIL_RECEIVE 1
#define START_PORTAL_SEND 2
#define START_PORTAL_RECEIVE 3 /* -EACCES: nobody is allowed to send there */

#define INFO_PROCESS 0
#define INFO_TILE 1
#define INFO_CORES 2
#define INFO_CORE 3
#define INFO_THREADS 4
#define INFO_RANK 5   /* of a program that was started as several */
#define INFO_RANKS 6
#define INFO_MEMBER 7 /* (what, rank) -> process; -EAGAIN: not there yet; -EINVAL: there is none */

#define MODE_FAITHFUL 0 /* stop-and-copy through a portal, 4 KiB a piece, each piece allowed by the receiver */
#define MODE_DIRECT 1   /* stop-and-copy, once, by the receiver */
#define MODE_HANDOFF 2  /* the pages change hands; nothing is copied */
#define MODE_PRECOPY 3  /* copied while it runs, in rounds of dirty pages; then frozen for the last few pages */
#define MODE_COUNT 4

#ifndef __ASSEMBLER__
/* The first bytes of the image, written by the linker script. */
struct image_head {
    unsigned long magic, abi;
    unsigned long entry;      /* first instruction of the first thread */
    unsigned long text_end;   /* executable, never written */
    unsigned long rodata_end; /* never written */
    unsigned long end;        /* of bss; page aligned as the two before */
};

struct mail_from {
    int process; /* sender */
    int port;    /* of the receiver: the port that was read */
};

/* To the name server, SERVER_PORT of CONSOLE_PROCESS; the answer comes to port `reply`. */
struct server_request {
    unsigned char what, reply;
    unsigned short unused;
    int number;    /* the port that is named; the status of an abort */
    char name[64]; /* ends with a zero */
};

struct server_answer {
    int result; /* 0 or negative errno */
    int process, port;
};
#endif

#endif
