"""The engine of a container's move: CRIU, with the workers of a dump and of a restore started before they are needed.

It deals with CRIU's options, images and errors of one host each; the order of the steps is the mover's. Invariant:
after `close` no worker and no descriptor of this process is left.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.paths import native_library, native_program
from wherry.base.units import format_size
from wherry.fabric import cpuset
from wherry.fabric.cgroup import CONTROLLERS, Cgroup
from wherry.node.container import clocks, progress_bounds, shown_cgroups
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.criu import rpc as criu_rpc
from wherry.node.container.host import ClocksAhead, StepMonitor
from wherry.node.container.mapping_flags import MappingFlags
from wherry.node.container.mounts import Layout
from wherry.node.container.processes import doings, first_process
from wherry.node.container.progress_bounds import MoveTimeouts, ProgressProbe, StallTimeout, first_of, work_of
from wherry.node.container.rate_limit import RateLimit
from wherry.node.container.streams import Sender
from wherry.node.container.tcp_repair import end_repair
from wherry.node.protocol import Placement, ProgramEnded

CPU = ("cpu", "cpuacct")
_FRESH_PROC = ("unshare", "--mount", "--propagation", "slave", "--mount-proc", "--")
"""Gives the worker of a dump a /proc of its own. The kernel keeps the entries of /proc/PID/map_files with the file mode
that a mapping had when it was first looked at, also when another file is mapped at the same addresses by then. A dump
after a move that was rolled back would read how the file of an earlier mapping was opened, and the restore would open
the new one so (mmap: EACCES)."""
_BY_SIZE = "file-validation filesize"
"""A file that is mapped is the same at the destination if its size is. CRIU's default compares the build IDs of ELF
files, which it reads from each of some hundred libraries, at both ends."""
_NET_KEY = "wherry-net"
"""Key of the node's network namespace in the images. It is never dumped: each placement has its own."""


class _Engine(ABC):
    """CRIU at one host of a move. `act` names its work there; `netns` is the host's network namespace."""

    act = ""

    def __init__(self, placement: Placement, layout: Layout, netns: str, paged: bool) -> None:
        self._placement, self._layout, self._netns, self._paged = placement, layout, netns, paged
        self._group = Cgroup(placement.cgroup)
        self._argv = criu_probe.find().argv
        self._descriptors: dict[str, int] = {}
        self._clocks: tuple[str, ...] = ()
        """Words for wherry-ns that give CRIU the node's clocks, so that it sees no other ones."""
        self._cgroup_root: tuple[str, ...] = ()
        """Words that make the node's cgroup the root of the cgroups that CRIU and the restored processes see."""
        self.worker: criu_rpc.Worker | None = None
        self.images = layout.images / "criu"
        """CRIU's images, which are all that is sent of the move's directory of images."""

    def _start(
        self,
        keep: Sequence[int],
        sends: bool = False,
        group: Cgroup | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        enter = [str(native_program("wherry-ns")), "--net", self._netns, *self._clocks, *self._cgroup_root]
        if group is not None:
            enter += ["--cgroup", group.freezer_procs_file()]
        fresh = _FRESH_PROC if sends else ()
        argv, extra = _with_library(self._argv), {"WHERRY_CRIU_ACT": self.act, **(extra or {})}
        self.worker = criu_rpc.Worker([*enter, "--", *fresh, *argv], keep, sends, group, extra)

    def _common(self) -> dict[str, object]:
        for name, path in (("images", self.images), ("work", self.images.parent)):
            self._hold(name, criu_rpc.open_directory(path))
        return {
            "images_dir_fd": self._descriptors["images"],
            "work_dir_fd": self._descriptors["work"],
            "log_file": f"{self.act}.log",
            "log_level": 2,
            "manage_cgroups_mode": criu_rpc.IGNORE_CGROUPS,
            "skip_file_rwx_check": True,
            "timeout": int(progress_bounds.total(self._placement.node.memory)),
        }

    def _hold(self, name: str, descriptor: int) -> None:
        """Keeps a descriptor until `close`, in place of an earlier one of this name."""
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        self._descriptors[name] = descriptor

    def problem(self) -> str:
        """How the worker that waits for its turn has ended; empty when it has not."""
        how = self.worker.problem() if self.worker else ""
        return f"CRIU's {self.act} {how}" if how else ""

    def _begin(self, kind: int, options: Mapping[str, object]) -> None:
        if self.worker is None:
            raise Failed(Code.MOVE_FAILED, f"the {self.act} was not prepared")
        self.worker.begin(kind, options)

    def _finish(self, stage: Callable[[str, int], None], make_timeout: Callable[..., StallTimeout]) -> None:
        worker = self.worker
        if worker is None:
            raise Failed(Code.MOVE_FAILED, f"the {self.act} was not prepared")
        try:
            worker.finish(make_timeout(worker.work()), stage)
        except Failed as error:
            late = error.code == Code.TIMED_OUT
            doing = doings({*worker.pids(), *self._group.pids()}) if late else ""
            with contextlib.suppress(Failed):  # this error is the first one, and `close` ends the worker
                self._give_up(worker)
            if error.code == Code.CANCELLED or isinstance(error, ProgramEnded):
                raise
            reason = criu_rpc.first_error(self._layout.images / f"{self.act}.log")
            raise Failed(
                error.code,
                f"CRIU could not {self.act} node {self._placement.node.name}",
                self._reason(f"{error}: {doing}" if late else reason or str(error)),
                "the same command again",
            ) from None
        self.worker = None
        worker.close()

    @abstractmethod
    def _give_up(self, worker: criu_rpc.Worker) -> None:
        """Ends a worker after an error."""

    @abstractmethod
    def _reason(self, reason: str) -> str:
        """The reason of a failure, with this host's own findings."""

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class CriuDump(_Engine):
    """The dump of a node."""

    act = "dump"

    def __init__(self, placement: Placement, layout: Layout, netns: str, limit: RateLimit, paged: bool = False) -> None:
        super().__init__(placement, layout, netns, paged)
        self._clocks = clocks.entered(first_process(placement))
        self._limit, self._timeouts = limit, MoveTimeouts(placement.node.memory, limit.rate)
        self._pages: Sender | None = None
        self._external: tuple[str, ...] = ()

    @property
    def flags(self) -> MappingFlags:
        """The copies of the flags of mappings, which the dump of a paged move gets."""
        return MappingFlags(self._layout.images / "smaps")

    @property
    def skip_list(self) -> Path:
        """The list of mappings that the dump leaves to the pager, written when the node is frozen."""
        return self._layout.images / "hidden"

    @property
    def options(self) -> Path:
        """Where our library notes options of sockets that CRIU does not carry."""
        return self._layout.images / "socket-options"

    def begin_unpaged(self, pages: Sender) -> None:
        """Starts the worker of a dump that sends memory over `pages`."""
        self._pages = pages
        self._start((pages.fileno(),), sends=True, extra=self._names())

    def begin_paged(self, external: Sequence[str] = ()) -> None:
        """Begins a dump whose memory the pager sends, up to where CRIU would look at the processes. Anew if it was
        begun with other external files."""
        if self.worker:
            self.worker.close()
        near, far = socket.socketpair()
        far.close()
        with near:  # CRIU's page server reads its end at once: nothing is asked for
            extra = {"WHERRY_CRIU_SKIP": str(self.skip_list), "WHERRY_CRIU_SMAPS": str(self.flags.prefix)}
            self._start((near.fileno(),), sends=True, extra=self._names() | extra)
            words = self._layout.images / "criu.conf"  # the request has no fields for these
            words.write_text(f"ps-socket {near.fileno()}\n{_BY_SIZE}\n")
        more = {"lazy_pages": True, "config_file": str(words)}
        self._begin(criu_rpc.DUMP, self._options(external) | more)
        self._external = tuple(external)

    def _names(self) -> dict[str, str]:
        """Where our library finds the names of the node's files, and notes options of its sockets."""
        first = first_process(self._placement)
        self.options.unlink(missing_ok=True)
        root = {"WHERRY_CRIU_ROOT": f"/proc/{first}/root"} if first else {}
        return root | {"WHERRY_CRIU_OPTIONS": str(self.options)}

    def dump(self, external: Sequence[str], monitor: StepMonitor) -> float | None:
        """Sends all memory of the frozen node, and writes its images; how long it was frozen, by CRIU's report."""
        options, pages = self._options(external), self._pages
        if pages is None:
            raise Failed(Code.MOVE_FAILED, f"the dump of node {self._placement.node.name} was not prepared")
        sending = _Sending(pages, monitor)

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            every = (*probes, pages.traffic(), work_of_group(self._group), sending.probe)
            return self._timeouts.of_sending("CRIU's dump", pages.round_trip(), *every)

        self._keep_mounts()
        try:
            # CRIU sets TCP_CORK; without uncork the last partial segment is held back for up to 200 ms
            with self._limit.sending(pages):
                self._begin(criu_rpc.DUMP, options | {"ps": {"fd": pages.fileno()}})
                self._finish(sending.uncork, make_timeout)
        except Failed as error:
            raise sending.ended or error from None
        pages.end()
        return criu_rpc.engine_seconds(self._layout.images / "stats-dump")

    def dump_paged(self, external: Sequence[str], monitor: StepMonitor) -> None:
        """Writes the images of the frozen node, whose memory the pager sends. CRIU counts no time for such a dump."""
        if tuple(external) != self._external:
            self.begin_paged(external)
        ended: list[WherryError] = []

        def patient(text: str = "") -> bool:
            """A dump that is ended midway may lose messages, so the end of the move waits these milliseconds."""
            try:
                return not ended and monitor(text)
            except WherryError as error:
                ended.append(error)
                return False

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            return self._timeouts.of_step("CRIU's dump", first_of(*probes, work_of_group(self._group)), patient)

        def stage(script: str, _pid: int) -> None:
            if script == "post-dump":  # all is written, and CRIU still has the processes and their connections
                patient(script)

        self._keep_mounts()
        self._finish(stage, make_timeout)
        if ended:
            raise ended[0]

    def close(self) -> None:
        """Closes descriptors and ends the worker. Idempotent."""
        self._close_descriptors()
        if worker := self.worker:
            worker.close()
            self.worker = None

    def _options(self, external: Sequence[str]) -> dict[str, object]:
        """The options of every dump of the node."""
        pid, name = first_process(self._placement), self._placement.node.name
        if pid is None:
            raise Failed(Code.MOVE_FAILED, f"node {name} has no first process", "", "wherry status")
        return {
            **self._common(),
            "pid": pid,
            "external": [
                f"net[{os.stat(self._placement.netns).st_ino}]:{_NET_KEY}",
                *(f"mnt[{bind.inside}]:{bind.name}" for bind in (*self._layout.binds, *self._layout.masks)),
                *external,
            ],
            "ghost_limit": min(self._placement.node.memory, 2**32 - 1),
            "leave_running": True,
            "tcp_established": True,
            "file_locks": True,
            "freeze_cgroup": self._group.freezer_dir(),
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
        }

    def _keep_mounts(self) -> None:
        if self.worker:
            with contextlib.suppress(OSError):  # it has ended, which the request finds
                self._hold("mounts", self.worker.open_mounts())

    def _give_up(self, worker: criu_rpc.Worker) -> None:
        """Only cuts the connection: a dump must fail by itself to release the processes and their connections; if it
        does not, `close` kills it."""
        if self._pages:
            self._pages.cut()
        worker.close()

    def _reason(self, reason: str) -> str:
        """Ends repair mode after CRIU was killed while it held connections."""
        with contextlib.suppress(Failed):
            self._group.freeze()
        if ended := end_repair(self._group.pids()):
            reason += f"; {ended} connections were in repair mode, so messages may be lost: see wherry job list"
        return reason


class CriuRestore(_Engine):
    """The restore of a node. `own_group` is a cgroup of CRIU's own, which is killed as a whole."""

    act = "restore"

    def __init__(
        self, placement: Placement, layout: Layout, netns: str, own_group: Cgroup, paged: bool = False
    ) -> None:
        super().__init__(placement, layout, netns, paged)
        self._own_group = own_group
        self._timeouts = MoveTimeouts(placement.node.memory)
        self._begun = False

    def prepare(self, ahead: ClocksAhead) -> None:
        """Starts the worker, whose clocks are so far `ahead` of this host's, as the node's will be."""
        self._clocks = clocks.made(ahead)
        self._cgroup_root = shown_cgroups.as_root(self._group.name)
        self._descriptors["net"] = os.open(self._placement.netns, os.O_RDONLY | os.O_CLOEXEC)
        self.start_worker(())

    def start_worker(self, descriptors: Sequence[int]) -> None:
        """Starts the worker, anew if it runs, so that it inherits these descriptors under the same numbers."""
        if worker := self.worker:
            self.worker = None
            worker.kill()  # it waits at its gate, has touched nothing, and would not see that its connection is closed
            worker.close()
        self._own_group.create()
        self._begun = False
        keep = (self._descriptors["net"], *descriptors)
        if not self._paged:
            self._start(keep, group=self._own_group)
            return
        gate, ours = os.pipe()
        self._hold("gate", ours)
        try:
            self._start((gate, *keep), group=self._own_group, extra={"WHERRY_CRIU_GATE": str(gate)})
        finally:
            os.close(gate)

    def begin_paged(self, inherit_fd: Sequence[Mapping[str, object]] = ()) -> None:
        """Begins the restore of a paged move: CRIU waits before it reads the first image."""
        layout = self._layout
        options = {
            **self._common(),
            "root": str(layout.root),
            "tcp_established": True,
            "file_locks": True,
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "external": [f"mnt[{bind.name}]:{bind.outside}" for bind in (*layout.binds, *layout.masks)],
            "inherit_fd": [{"key": _NET_KEY, "fd": self._descriptors["net"]}, *inherit_fd],
            **({"lazy_pages": True} if self._paged else {"auto_dedup": True}),
        }
        self._begin(criu_rpc.RESTORE, options)
        self._begun = True

    def page_server(self) -> list[str]:
        """The command of the receiver of the memory; `{fd}` is its connection."""
        return [*self._argv, "page-server", "--ps-socket", "{fd}", "--images-dir", str(self.images)]

    def restore(self, inherit_fd: Sequence[Mapping[str, object]], cancelled: Callable[[], object]) -> float | None:
        """Restores the node, frozen before its first instruction; the seconds that CRIU reports for it."""
        group = self._group

        def stage(script: str, pid: int) -> None:
            # until the freeze it shares the CPU with CRIU, not with the ranks that run at the destination
            if script == "setup-namespaces":
                group.add(pid, [c for c in CONTROLLERS if c not in CPU])
                cpuset.add(group.name, pid)
            elif script == "pre-resume":
                group.freeze()

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            return self._timeouts.of_step(
                "CRIU's restore", first_of(*probes, work_of_group(group)), cancelled=cancelled
            )

        if not self._begun:
            self.begin_paged(inherit_fd)
        if self._paged:
            with contextlib.suppress(BrokenPipeError):  # it has ended, as its answer shows
                os.write(self._descriptors["gate"], b"+")
        self._finish(stage, make_timeout)
        return criu_rpc.engine_seconds(self._layout.images / "stats-restore")

    def close(self) -> None:
        """Closes descriptors, and kills the worker with everything that it forked. Idempotent."""
        self._close_descriptors()
        if worker := self.worker:
            worker.kill()
            worker.close()
            self.worker = None

    def _give_up(self, worker: criu_rpc.Worker) -> None:
        worker.kill()

    def _reason(self, reason: str) -> str:
        return f"host {self._placement.host} is out of memory" if self._group.out_of_memory() else reason


def _with_library(argv: Sequence[str]) -> list[str]:
    """CRIU with our library, which is named without its path, as that may have a space."""
    library = native_library("libwherry-criu.so")
    loader, *words = argv
    if words[:1] == ["--library-path"]:  # a private prefix, whose loader is called by name
        return [loader, words[0], f"{words[1]}:{library.parent}", "--preload", library.name, *words[2:]]
    return ["env", f"LD_LIBRARY_PATH={library.parent}", f"LD_PRELOAD={library.name}", *argv]


class _Sending:
    """Progress of a dump that sends memory; its connection is cut when the move is cancelled."""

    def __init__(self, pages: Sender, monitor: StepMonitor) -> None:
        self._pages, self._monitor = pages, monitor
        self.ended: WherryError | None = None
        """The exception that `monitor` raised. The connection was cut then, and CRIU undoes the dump."""

    def uncork(self, _script: str, _pid: int) -> None:
        """Called at each stage of CRIU."""
        self._pages.uncork()

    def probe(self) -> bool:
        """Whether the other host made progress."""
        if not self.ended:
            try:
                return self._monitor(f"{format_size(self._pages.sent())} sent")
            except WherryError as error:
                self.ended = error
                self._pages.cut()
        return False


def work_of_group(group: Cgroup) -> ProgressProbe:
    """A probe of the processes in a cgroup; none while it is frozen, when cgroup v1 shows them in state D
    as if they waited for a disk."""
    work = work_of(group.pids)
    return lambda: work() and not group.frozen()
