"""Control groups by name: limits, freezing, killing; on cgroup v1 (a hierarchy per controller), v2, and both at once.

A `Cgroup` is one path, such as `wherry-main/a1/hello-0`, below the root of every hierarchy that has one of our
controllers. Invariants: all state is the kernel's (except the weight that `prefer` restores), so two objects with one
name are the same cgroup; every call is idempotent; a missing controller is skipped, except the freezer, without which
no node can move.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.fabric.kill_listed import kill_listed
from wherry.fabric.poll import any_waits_for_a_processor, poll

CONTROLLERS = ("cpu", "cpuacct", "memory", "freezer", "pids")
PERIOD = 5000
"""CFS period in microseconds: the longest time for which a throttled node waits."""
MIN_QUOTA = 1000
"""The kernel's smallest quota in microseconds: a limit below 0.2 CPUs becomes 0.2."""
_GATHER_PASSES = 16
"""Passes of `gather`: each finds the processes that were forked during the one before."""
TASKS = 4096
"""Limit of processes and threads of a node: a fork bomb must not use up the machine's process ids (32768)."""
_NO_LIMIT = 1 << 62
"""Bytes from which on a limit of memory (v1) is none."""
PREFERENCE = 10
"""Factor by which `prefer` raises the CPU weight."""


@dataclass(frozen=True)
class Layout:
    """Where each controller is mounted: v1 mount points by controller, the v2 mount point and its controllers."""

    v1: dict[str, Path]
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()
    others: tuple[Path, ...] = ()
    """Hierarchies without one of our controllers, in which an OCI runtime makes cgroups all the same."""

    def root(self, controller: str) -> Path | None:
        """Root of the hierarchy with the controller; None when the machine lacks it."""
        if controller in self.v1:
            return self.v1[controller]
        return self.v2 if controller in self.v2_controllers else None

    def is_v2(self, controller: str) -> bool:
        """True when the controller is available in v2."""
        return controller not in self.v1 and controller in self.v2_controllers

    def roots(self) -> list[Path]:
        """Roots of all hierarchies in use, the freezer's first."""
        order = ("freezer", *(c for c in CONTROLLERS if c != "freezer"))
        return list(dict.fromkeys(root for c in order if (root := self.root(c)) is not None))

    def mixed(self) -> bool:
        """True when some controllers, used by us or not, are in v1 and others in v2."""
        return bool(self.v1 and self.v2 and _read(self.v2 / "cgroup.controllers").strip())

    def missing(self) -> list[str]:
        """Controllers that the machine lacks."""
        return [c for c in CONTROLLERS if self.root(c) is None]


def read_layout(mountinfo: str) -> Layout:
    """Parses the text of /proc/self/mountinfo, in which a user's mount may have any name."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    every: list[Path] = []
    for line in mountinfo.rstrip("\n").split("\n"):
        before, _, after = line.partition(" - ")
        kind, _, options = (after.split() + ["", "", ""])[:3]
        path = Path(before.split()[4].replace("\\040", " "))
        if kind in ("cgroup", "cgroup2"):
            every.append(path)
        if kind == "cgroup2":
            v2 = v2 or path
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                v1.setdefault(controller, path)
    offered: set[str] = set()
    if v2 is not None and (v2 / "cgroup.controllers").exists():
        offered = set((v2 / "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
        offered |= {"freezer"} | ({"cpuacct"} if "cpu" in offered else set())  # in v2's core; in its cpu controller
    found = Layout(v1, v2, frozenset(offered))
    return replace(found, others=tuple(path for path in every if path not in found.roots()))


@functools.cache
def machine_layout() -> Layout:
    """This machine's layout, read once."""
    layout = read_layout(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    if layout.root("freezer") is None:
        raise Refused(
            Code.UNSUPPORTED,
            "this machine has no cgroup freezer",
            "neither a v1 freezer nor a v2 hierarchy is mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
        )
    return layout


def only(*controllers: str) -> Layout:
    """This machine's hierarchies of these controllers alone. The freezer's is enough for a cgroup that only has to be
    killed as a whole."""
    layout = machine_layout()
    v1 = {controller: layout.v1[controller] for controller in controllers if controller in layout.v1}
    v2 = frozenset(controllers) - v1.keys()
    return Layout(v1, layout.v2, v2) if v2 else Layout(v1)


class Cgroup:
    """One cgroup by name, in all hierarchies at once."""

    def __init__(self, name: str, layout: Layout | None = None) -> None:
        self.name = name.strip("/")
        self._layout = layout or machine_layout()
        self._weight: int | None = None

    def __repr__(self) -> str:
        return f"Cgroup({self.name!r})"

    def create(self) -> None:
        """Creates the cgroup and its parents; in v2 also enables the controllers in the parents."""
        for root in self._layout.roots():
            (root / self.name).mkdir(parents=True, exist_ok=True)
        if self._layout.v2 in self._layout.roots():
            self._delegate(self._layout.v2 or Path())

    def _delegate(self, root: Path) -> None:
        parents = [root / p for p in reversed(Path(self.name).parents)]
        for parent in parents:
            for controller in ("cpu", "memory", "pids"):
                if self._layout.is_v2(controller):
                    try:
                        (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                    except OSError:
                        continue  # a sandbox may forbid it; `limit` then fails with the reason

    def exists(self) -> bool:
        """True when the cgroup exists in the freezer's hierarchy."""
        return os.path.isdir(self.freezer_dir())

    def procs_files(self) -> list[str]:
        """The cgroup.procs of every hierarchy: a process joins the cgroup by writing 0 into each."""
        return [str(root / self.name / "cgroup.procs") for root in self._layout.roots()]

    def freezer_procs_file(self) -> str:
        """The cgroup.procs in the freezer's hierarchy."""
        return f"{self.freezer_dir()}/cgroup.procs"

    def freezer_dir(self) -> str:
        """The directory that CRIU takes as --freeze-cgroup."""
        root = self._layout.root("freezer")
        assert root is not None, "machine_layout refuses a machine without a freezer"
        return str(root / self.name)

    def add(self, pid: int, controllers: Sequence[str] = CONTROLLERS) -> None:
        """Moves a process with all its threads into the cgroup, in the hierarchies of these controllers.

        Failed when the process is gone or a controller refuses it.
        """
        roots = dict.fromkeys(root for c in controllers if (root := self._layout.root(c)) is not None)
        for path in (root / self.name / "cgroup.procs" for root in roots):
            try:
                path.write_text(str(pid))
            except OSError as error:
                raise Failed(
                    Code.FAILED, f"process {pid} was not put into cgroup {self.name}", f"{path}: {error.strerror}"
                ) from None

    def gather(self, controllers: Sequence[str]) -> None:
        """Adds every process of the freezer's cgroup to those of `controllers`, with processes forked meanwhile."""
        for _ in range(_GATHER_PASSES):
            wanted = set(self._procs("freezer"))
            strays = set().union(*(wanted - set(self._procs(c)) for c in controllers if self._layout.root(c)))
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(Failed):  # it ended meanwhile
                    self.add(pid, controllers)

    def _procs(self, controller: str) -> list[int]:
        root = self._layout.root(controller)
        return [] if root is None else [int(pid) for pid in _read(root / self.name / "cgroup.procs").split()]

    def pids(self, roots: Sequence[Path] | None = None) -> list[int]:
        """Processes in the cgroup and its descendants, in any hierarchy, or any of these."""
        found: set[int] = set()
        for root in self._layout.roots() if roots is None else roots:
            for directory in _tree(root / self.name):
                found.update(int(p) for p in _read(directory / "cgroup.procs").split())
        return sorted(found - {0})  # 0 stands for a process outside of our PID namespace

    def children(self) -> list[Cgroup]:
        """The child cgroups."""
        names = {d.name for root in self._layout.roots() for d in _directories(root / self.name)}
        return [Cgroup(f"{self.name}/{name}", self._layout) for name in sorted(names)]

    def freeze(self, timeout: float = 5.0) -> None:
        """Freezes the cgroup; returns when every process is frozen. Failed (TIMED_OUT) when one is not: later while
        some wait for a processor, which they need for that."""

        def freeze_again() -> bool:
            # v1 can stay FREEZING, behind a process in vfork or on a slow disk, until FROZEN is written again
            self._set_frozen(True)
            return self.frozen()

        if not poll(freeze_again, timeout, lambda: any_waits_for_a_processor(self.pids())):
            raise Failed(
                Code.TIMED_OUT,
                f"cgroup {self.name} did not freeze",
                f"not all of its {len(self.pids())} processes stopped within {timeout:g} s",
                f"cat {self.freezer_procs_file()}",
            )

    def thaw(self) -> None:
        """Lets the processes run."""
        self._set_frozen(False)

    def frozen(self) -> bool:
        """True when every process is frozen."""
        if self._layout.is_v2("freezer"):
            return "frozen 1" in _read(Path(self.freezer_dir(), "cgroup.events"))
        return _read(Path(self.freezer_dir(), "freezer.state")).strip() == "FROZEN"

    def _freezer_word(self, frozen: bool) -> tuple[str, str]:
        if self._layout.is_v2("freezer"):
            return "cgroup.freeze", "1" if frozen else "0"
        return "freezer.state", "FROZEN" if frozen else "THAWED"

    def _set_frozen(self, frozen: bool) -> None:
        name, word = self._freezer_word(frozen)
        self._write(Path(self.freezer_dir(), name), word, "frozen" if frozen else "thawed")

    def kill_all(self) -> bool:
        """Sends SIGKILL to every process in the cgroup and its descendants; none executes another user instruction.

        True when there was none. Else call again: a process may take a while to exit, and an unfrozen one may have
        forked.
        """
        left, listed = self.pids(), self._layout.roots()
        if left and self._layout.is_v2("freezer") and _try_write(Path(self.freezer_dir(), "cgroup.kill"), "1"):
            listed = [root for root in listed if root != self._layout.v2]  # ids of the dead may be others' by now
        kill_listed(directory / "cgroup.procs" for root in listed for directory in _tree(root / self.name))
        for directory in _tree(Path(self.freezer_dir())):  # v1: a frozen process dies when it is thawed
            _try_write(directory / self._freezer_word(False)[0], self._freezer_word(False)[1])
        return not left

    def kill(self, timeout: float = 60.0) -> None:
        """Kills every process in it and below; returns when none is left. Failed (TIMED_OUT) when one stays."""
        if (self.exists() or self.pids()) and not poll(self.kill_all, timeout):
            raise Failed(
                Code.TIMED_OUT, f"cgroup {self.name} is not empty", f"processes {self.pids()} outlived SIGKILL"
            )

    def limit(self, cpus: float | None, memory: int | None, tasks: int | None = TASKS, burst: bool = False) -> None:
        """Limits CPUs (CFS quota), bytes of memory, and tasks; None is no limit. Failed when a controller refuses.

        With `burst` the CPU time of one period that was not used may be used later, as much as that of one period.
        Without a limit of CPUs tasks have none either: that is a node on the move, and CRIU's processes count, too.
        """
        self.limit_cpus(cpus, burst)
        self.limit_memory(memory)
        if (pids := self._path("pids")) is not None:
            word = "max" if tasks is None or cpus is None else str(tasks)
            self._write(pids / "pids.max", word, "limited in tasks")

    def limit_cpus(self, cpus: float | None, burst: bool = False, exact: bool = False) -> None:
        """Limits CPUs alone. A limit that is to be `exact` gets a longer period where the kernel's smallest quota would
        be more than it."""
        cpu, v2 = self._path("cpu"), self._layout.is_v2("cpu")
        if cpu is None:
            return
        period = max(PERIOD, math.ceil(MIN_QUOTA / cpus)) if cpus and exact else PERIOD
        quota = -1 if cpus is None else max(MIN_QUOTA, round(cpus * period))
        saved = cpu / ("cpu.max.burst" if v2 else "cpu.cfs_burst_us")  # Linux 5.14
        _try_write(saved, "0")  # the old quota's burst may exceed the new one's
        if v2:
            self._write(cpu / "cpu.max", f"{'max' if quota < 0 else quota} {period}", "limited in cpu time")
        else:
            self._limit_cpu_v1(cpu, quota, period)
        if burst and quota > 0:
            _try_write(saved, str(quota))

    def limit_memory(self, memory: int | None) -> None:
        """Limits the memory in bytes; None is no limit. Failed when the controller refuses."""
        path, v2 = self._path("memory"), self._layout.is_v2("memory")
        if path is not None:
            word = ("max" if v2 else "-1") if memory is None else str(memory)
            self._write(path / ("memory.max" if v2 else "memory.limit_in_bytes"), word, "limited in memory")

    def _limit_cpu_v1(self, cpu: Path, quota: int, period: int) -> None:
        self._write(cpu / "cpu.cfs_quota_us", "-1", "limited in cpu time")  # an old quota may not suit the new period
        self._write(cpu / "cpu.cfs_period_us", str(period), "limited in cpu time")
        try:
            (cpu / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: more than the parent's quota, which is then the limit
                raise self._refusal("limited in cpu time", error) from None

    def weight(self, cpus: float) -> None:
        """Sets the CPU weight among siblings, in proportion to `cpus`."""
        v2 = self._layout.is_v2("cpu")
        self._weight = _clamp(round(cpus * (100 if v2 else 1024)), v2)
        self._set_weight(self._weight)

    def weigh_parent(self) -> None:
        """Sets the parent's CPU weight to the sum of its children's: a host with two nodes counts for two."""
        above = Cgroup(str(Path(self.name).parent), self._layout)
        weights = [int(_read(path) or 0) for child in above.children() if (path := child._weight_path())]
        if above.exists() and any(weights):
            above._set_weight(_clamp(sum(weights), self._layout.is_v2("cpu")))

    def prefer(self, preferred: bool) -> None:
        """Raises the CPU weight tenfold, or restores the weight that `weight` (of this object) set."""
        path = self._weight_path()
        if path is None:
            return
        if self._weight is None and preferred:
            self._weight = int(_read(path) or 0) or None
        if self._weight is not None:
            v2 = self._layout.is_v2("cpu")
            self._set_weight(_clamp(self._weight * PREFERENCE, v2) if preferred else self._weight)

    def _weight_path(self) -> Path | None:
        cpu = self._path("cpu")
        return None if cpu is None else cpu / ("cpu.weight" if self._layout.is_v2("cpu") else "cpu.shares")

    def _set_weight(self, value: int) -> None:
        if (path := self._weight_path()) is not None:
            self._write(path, str(value), "given a CPU weight")

    def throttled(self) -> float:
        """Seconds for which the quota throttled its processes."""
        stat = self._stat("cpu", "cpu.stat")
        return stat.get("throttled_time", 0) / 1e9 + stat.get("throttled_usec", 0) / 1e6

    def cpu_seconds(self) -> float:
        """CPU time used, in seconds."""
        if self._layout.is_v2("cpuacct"):
            return self._stat("cpuacct", "cpu.stat").get("usage_usec", 0) / 1e6
        path = self._path("cpuacct")
        return int(_read(path / "cpuacct.usage") or 0) / 1e9 if path else 0.0

    def out_of_memory(self) -> bool:
        """True when the OOM killer ended one of its processes, by its own limit or an ancestor's."""
        return self.oom_kills() > 0

    def oom_kills(self) -> int:
        """Processes of it that the OOM killer ended."""
        file = "memory.events" if self._layout.is_v2("memory") else "memory.oom_control"
        return self._stat("memory", file).get("oom_kill", 0)

    def memory_peak(self) -> int:
        """Bytes of memory that it had at most; 0 where the kernel does not count them."""
        path, v2 = self._path("memory"), self._layout.is_v2("memory")
        return int(_read(path / ("memory.peak" if v2 else "memory.max_usage_in_bytes")) or 0) if path else 0

    def memory_used(self) -> int:
        """Bytes of memory that it has, without files that the kernel drops when others need their place."""
        path, v2 = self._path("memory"), self._layout.is_v2("memory")
        used = int(_read(path / ("memory.current" if v2 else "memory.usage_in_bytes")) or 0) if path else 0
        return max(
            0, used - self._stat("memory", "memory.stat").get("inactive_file" if v2 else "total_inactive_file", 0)
        )

    def memory_limit(self) -> int | None:
        """Its limit in bytes; None when it has none."""
        path, v2 = self._path("memory"), self._layout.is_v2("memory")
        text = _read(path / ("memory.max" if v2 else "memory.limit_in_bytes")).strip() if path else ""
        return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None

    def refused_tasks(self) -> int:
        """How often it could not have another process or thread because of its limit."""
        return self._stat("pids", "pids.events").get("max", 0)

    def remove(self, timeout: float = 60.0) -> None:
        """Kills all processes left and removes the cgroup, children first. Failed when the kernel keeps it busy."""
        self.kill(timeout)

        def gone() -> bool:
            roots = (*self._layout.roots(), *self._layout.others)
            left = [d for root in roots for d in reversed(_tree(root / self.name))]
            return all([_rmdir(directory) for directory in left])  # a list, so that each is tried

        if not poll(gone, timeout):
            raise Failed(
                Code.TIMED_OUT, f"cgroup {self.name} could not be removed", f"busy with processes {self.pids()}"
            )

    def remove_if_empty(self) -> None:
        """Removes the cgroup unless it has processes or children."""
        for root in (*self._layout.roots(), *self._layout.others):
            _rmdir(root / self.name)

    def _path(self, controller: str) -> Path | None:
        root = self._layout.root(controller)
        return None if root is None else root / self.name

    def _stat(self, controller: str, file: str) -> dict[str, int]:
        path = self._path(controller)
        lines = (line.split() for line in _read(path / file).splitlines()) if path else ()
        return {words[0]: int(words[1]) for words in lines if len(words) == 2}

    def _write(self, path: Path, text: str, done: str) -> None:
        try:
            path.write_text(text)
        except OSError as error:
            raise self._refusal(done, error) from None

    def _refusal(self, done: str, error: OSError) -> Failed:
        return Failed(
            Code.FAILED, f"cgroup {self.name} was not {done}", f"{error.filename}: {error.strerror}", "wherry doctor"
        )


def warm_cgroup_attach() -> None:
    """Makes an `add` within the next tens of milliseconds fast.

    The first attach after a pause waits for an RCU grace period, 5 to 20 ms. This function attaches the calling process
    to its own cgroup, and so takes that wait out of a downtime.
    """
    root = machine_layout().root("freezer")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, name = line.split(":", 2)
        ours = "freezer" in controllers.split(",") or (number == "0" and root == machine_layout().v2)
        if root is not None and ours:
            _try_write(root / name.strip("/") / "cgroup.procs", str(os.getpid()))


def sweep(prefix: str, layout: Layout | None = None) -> None:
    """Removes the cgroups of one instance, e.g. `wherry-main`, with every process in them."""
    Cgroup(prefix, layout).remove()


def _clamp(weight: int, v2: bool) -> int:
    return min(max(weight, 1), 10000) if v2 else min(max(weight, 2), 262144)


def _directories(path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _tree(path: Path) -> list[Path]:
    """`path` and all directories below it, parents first; empty when it does not exist."""

    def walk(directory: Path) -> Iterator[Path]:
        yield directory
        for child in _directories(directory):
            yield from walk(child)

    return list(walk(path)) if path.is_dir() else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # removed meanwhile (ENOENT, ENODEV), or a file that this kernel lacks
        return ""


def _try_write(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):  # the caller checks the effect
        return bool(path.write_text(text))
    return False


def _rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True
