"""Finds the processes that may use AMX, the processor's registers for matrices, which CRIU does not carry.

A program asks the kernel for them once, by arch_prctl(ARCH_REQ_XCOMP_PERM, 18); math libraries do so by themselves on
processors that have them. CRIU asks for no permission again and leaves out what is in the registers (its issues 1448
and 2835), so a moved program would be killed by SIGILL at the next use, or continue with other contents. The permission
is visible only from inside a process. So each is asked (native/pager/permitted.c) where this machine has AMX at all;
elsewhere this costs nothing.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Iterator

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.base.text import printable

FEATURE = 18
"""XFEATURE_XTILEDATA of the processor's state; tests ask for another one, which every processor has."""
_ARCH_PRCTL, _GET_SUPPORTED = 158, 0x1021
"""A system call of x86-64, and ARCH_GET_XCOMP_SUPP of asm/prctl.h, since Linux 5.16."""
_ASK_TIMEOUT = 60.0
"""Seconds for a node's processes to be asked, and one more for each: processes without an answer take half of that."""
_ADVICE = (
    "restarted with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, MKL_ENABLE_INSTRUCTIONS=AVX512_E3 and "
    "OPENBLAS_CORETYPE=SkylakeX in its environment, its math libraries do without"
)


@functools.cache
def supported() -> int:
    """The features of the processor's state that programs may use on this machine, a bit for each."""
    mask = ctypes.c_uint64()
    return 0 if ctypes.CDLL(None).syscall(_ARCH_PRCTL, _GET_SUPPORTED, ctypes.byref(mask)) else mask.value


def users(pids: list[int]) -> Iterator[tuple[int, str]]:
    """The processes that may use AMX, or cannot be asked, with the text of an error about each."""
    if not pids or not supported() >> FEATURE & 1:
        return
    words = [str(native_program("wherry-pager")), "permitted", str(FEATURE), *map(str, pids)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_TIMEOUT + len(pids), check=True)
    except (OSError, subprocess.SubprocessError) as error:
        what = "the node's processes could not be asked whether they use AMX"
        raise Failed(Code.MOVE_FAILED, what, str(error), "repeat the move") from None
    for line in done.stdout.splitlines():
        word, pid, *why = line.split(" ", 2)
        if word == "permitted":
            yield int(pid), f"may use AMX (it asked the kernel for it), which CRIU does not carry: {_ADVICE}"
        else:
            yield int(pid), f"cannot be asked whether it uses AMX, which CRIU does not carry: {printable(''.join(why))}"
