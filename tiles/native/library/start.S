/* Head of the image, first instructions of threads, and the one way into the kernel. */
#include "../abi/abi.h"

        .section .tile.head, "a"
        .quad   TILE_MAGIC, TILE_ABI, _start, __text_end, __rodata_end, __image_end

        .text
        .globl  _start, kernel_call, thread_begin
/* rdi = argc, rsi = argv; the stack is aligned as after a call. */
_start:
        sub     $8, %rsp
        call    main
        mov     %eax, %esi
        mov     $CALL_EXIT, %edi
        jmp     kernel_call

/* rdi = function, rsi = argument. */
thread_begin:
        mov     %rdi, %rax
        mov     %rsi, %rdi
        sub     $8, %rsp
        call    *%rax
        mov     %rax, %rsi
        mov     $CALL_THREAD_EXIT, %edi
        jmp     kernel_call

kernel_call:
        call    *GATE_ADDRESS
        ret

        .section .note.GNU-stack, "", @progbits
