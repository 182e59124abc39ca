"""Programs of both MPIs with libwherry-mpi preloaded, and the pages of their ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import waiting
from wherry.base.paths import native_library
from wherry.node import mpi_page
from wherry.node.mpi_page import Page

SOURCES = Path(__file__).resolve().parents[2] / "native" / "tests"
LIBRARY = "libwherry-mpi.so"
RANKS = 4
LAUNCH = {
    "openmpi": "mpirun.openmpi --oversubscribe -n RANKS --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo"
    " -x LD_PRELOAD=PRELOAD",
    "mpich": "mpiexec.mpich -n RANKS -genv UCX_TLS tcp,self -genv MPIR_CVAR_NOLOCAL 1 -genv LD_PRELOAD PRELOAD",
}
FLAGS = "-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Wno-stringop-overflow".split()


class Programs:
    """Programs made by the compilers of one MPI, and the commands that launch them with preloaded libraries."""

    def __init__(self, flavour: str, directory: Path) -> None:
        self.flavour, self.directory = flavour, directory
        if not shutil.which(f"mpicc.{flavour}") or not shutil.which(LAUNCH[flavour].split()[0]):
            pytest.skip(f"no mpicc.{flavour} on this machine")

    def build(self, compiler: str, source: str, name: str, *flags: str) -> Path:
        """The path of the program that the MPI's compiler makes of it."""
        target = self.directory / name
        flags = (*flags, *FLAGS) if source.endswith(".c") else flags
        words = [f"{compiler}.{self.flavour}", *flags, "-o", str(target), str(SOURCES / source)]
        subprocess.run(words, check=True, capture_output=True, timeout=120)
        return target

    def command(self, preload: str = LIBRARY, ranks: int = RANKS) -> list[str]:
        """The launcher, to which a program is to be added."""
        if self.flavour == "mpich":  # whose MPI_Finalize may wait for ever without
            preload = f"libwherry-finalize.so {preload}".strip()
        words = LAUNCH[self.flavour].replace("RANKS", str(ranks)).split()
        return [word.replace("=PRELOAD", f"={preload}") if word != "PRELOAD" else preload for word in words]

    @contextmanager
    def running(self, *program: str, preload: str = LIBRARY, **env: str) -> Iterator[dict[int, Page]]:
        """The pages of its ranks, by rank, when they have made all their calls."""
        ready, stop = self.directory / "ready", self.directory / "stop"
        ready.unlink(missing_ok=True)
        stop.unlink(missing_ok=True)
        words = [*self.command(preload), *program]
        words += [str(ready), str(stop)] if len(program) == 1 else []
        env = {**os.environ, **environment(), "READY": str(ready), "STOP": str(stop), **env}
        with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as process:
            try:
                waiting.until(lambda: ready.exists() or process.poll() is not None, "the program")
                assert process.poll() is None, process.stderr and process.stderr.read()
                waiting.until(
                    lambda: [page.now for page in pages(process.pid).values()].count("Barrier") == RANKS - 1,
                    "all ranks but one at the barrier",
                )
                yield pages(process.pid)
            finally:
                stop.touch()
                try:
                    process.wait(waiting.bound())
                finally:
                    process.kill()
            assert process.returncode == 0


def environment(*, always: bool = False) -> dict[str, str]:
    """With `always` the library whose collectives are by sites whatever they take."""
    library = native_library(LIBRARY).parent
    assert (library.parent / "tests" / LIBRARY).exists(), "not built: make setup"
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "LD_LIBRARY_PATH": f"{library.parent / 'tests'}:{library}" if always else str(library),
    }


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, children) for one in (child, *descendants(child))]


def pages(launcher: int) -> dict[int, Page]:
    found = (mpi_page.read(pid, RANKS) for pid in descendants(launcher))
    return {page.rank: page for page in found if page and page.calls}
