"""libwherry-finalize.so intercepts dlsym: for all but MPICH's MPI_Finalize nobody notices."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from wherry.base.paths import native_library

NEXT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
pid_t getppid(void)
{
    pid_t (*next)(void) = dlsym(RTLD_NEXT, "getppid");

    return next == getppid ? -1 : next();
}
"""
"""A preloaded library that intercepts a function. It finds itself when RTLD_NEXT counts from the wrong place."""
ASKS = """
import ctypes, os
print(os.getppid())
process = ctypes.CDLL(None)
print(process.getpid() == os.getpid(), hasattr(process, "no_such_function"), hasattr(process, "MPI_Finalize"))
print(ctypes.CDLL("libc.so.6").abs(-3))
"""


def test_who_looks_for_the_next_function_finds_it(tmp_path: Path) -> None:
    library = tmp_path / "libnext.so"
    (tmp_path / "next.c").write_text(NEXT)
    subprocess.run(["cc", "-O0", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "next.c")], check=True)
    preload = f"{native_library('libwherry-finalize.so')} {library}"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", ASKS], env={"LD_PRELOAD": preload, "PATH": os.environ["PATH"]}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(os.getpid()), "True False True", "3"], done.stderr
