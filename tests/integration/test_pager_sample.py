"""wherry-pager sample: it sees writes of processes, and leaves these as they were; one tracks them at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from names import own_name
from wherry.base.errors import Failed
from wherry.fabric.cgroup import Cgroup, sweep
from wherry.node.container import pager, write_sample
from wherry.node.container.tracking import Tracking, probed

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and ptrace are root's"),
    pytest.mark.skipif(os.geteuid() == 0 and bool(pager.obstacle()), reason="this kernel does not track writes"),
]

TREE = f"wherry-{own_name('tpsa')}"
MIB = 1 << 20
WRITER = """
import mmap, sys, time
memory = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages, rate, first = len(memory) // 4096, float(sys.argv[1]) / 4096, int(sys.argv[2]) // 4096
for page in range(pages):
    memory[page * 4096] = 1
print("ready", flush=True)
began, written = time.monotonic(), 0
while True:
    due = int((time.monotonic() - began) * rate)
    while written < due:
        memory[written % first * 4096] = 2 + written // first % 250
        written += 1
    time.sleep(0.001)
"""


@contextmanager
def writer(rate: float, first: int) -> Iterator[Cgroup]:
    """A process in a cgroup that writes `rate` bytes per second of the `first` bytes of 64 MiB."""
    group = Cgroup(f"{TREE}/writer")
    group.create()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, f"{rate}", f"{first}"], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        group.add(process.pid)
        yield group
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
        group.remove()
        sweep(TREE)


IN_EACH_WAY = pytest.mark.parametrize("how", list(Tracking))


def require(how: Tracking) -> None:
    if obstacle := probed(how).obstacle:
        pytest.skip(obstacle)


@IN_EACH_WAY
@pytest.mark.measures("half the rate: a busy machine lets the writer run late, and the sample end late")
def test_the_rate_of_writing_is_seen(how: Tracking) -> None:
    require(how)
    with writer(20 * MIB, 48 * MIB) as group:
        taken = write_sample.take(group, 1.0, how)
        assert taken
        present, written = taken
        assert 64 * MIB < present < 128 * MIB and len(written) == 4
        seconds, last = written[-1]
        assert 1.0 <= seconds < 1.5 and 10 * MIB < last / seconds < 40 * MIB
        assert [bytes for _, bytes in written] == sorted(bytes for _, bytes in written)
        again = write_sample.take(group, 0.2, how)
        assert again and again[1][-1][1] < last, "the first sample left no protection"


@IN_EACH_WAY
def test_what_is_written_again_and_again_counts_once(how: Tracking) -> None:
    require(how)
    with writer(400 * MIB, 2 * MIB) as group:
        taken = write_sample.take(group, 0.5, how)
        assert taken and 2 * MIB <= taken[1][-1][1] < 8 * MIB, taken


NO_GUARDS = """
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#define SCAN 0xc0606610ul
int ioctl(int file, unsigned long request, ...)
{
    int (*real)(int, unsigned long, void *) = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (request == SCAN && ((uint64_t *)argument)[11] & 256)
        return errno = EINVAL, -1;
    return real(file, request, argument);
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the preloaded library")
def test_a_kernel_that_tells_no_guards_is_not_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux 6.7 to 6.14."""
    require(Tracking.WP_ASYNC)
    (tmp_path / "no.c").write_text(NO_GUARDS)
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", tmp_path / "no.so", tmp_path / "no.c"], check=True
    )
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "no.so"))
    with writer(MIB, MIB) as group:
        taken = write_sample.take(group, 0.2, Tracking.WP_ASYNC)
    assert taken and taken[0] > 64 * MIB


def samplers() -> list[int]:
    """Programs of ours that take a sample."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in children if b"\0sample\0" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_one_tracks_a_node_at_a_time() -> None:
    with writer(MIB, MIB) as group:
        with write_sample.tracked(group):
            assert write_sample.take(group, 0.1) is None
        first = threading.Thread(target=write_sample.take, args=(group, 3.0))
        first.start()
        while not samplers():
            time.sleep(0.01)
        assert write_sample.take(group, 0.1) is None
        with write_sample.tracked(group):
            assert not samplers(), "a move waits for the sample"
        first.join()
        assert write_sample.take(group, 0.1)


def test_a_node_that_has_ended_is_not_sampled() -> None:
    gone = Cgroup(f"{TREE}/gone")
    assert write_sample.take(gone, 0.1) is None
    with pytest.raises(Failed), write_sample.tracked(gone):
        pass
