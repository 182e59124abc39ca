"""The engine of a container's move: CRIU, with the workers of a dump and of a restore started before they are needed.

It knows CRIU's options, images and errors of one host each; the order of the steps is the mover's. Invariant: after
`close` no worker and no descriptor of this process is left.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.paths import native_program
from wherry.base.units import format_size
from wherry.fabric.cgroup import CONTROLLERS, Cgroup
from wherry.node.container import progress_bounds
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.criu import rpc as criu_rpc
from wherry.node.container.host import Look
from wherry.node.container.mounts import Layout
from wherry.node.container.processes import first_process
from wherry.node.container.progress_bounds import Bound, MoveBounds, Sign, work_of
from wherry.node.container.streams import RateLimit, Sender
from wherry.node.container.tcp_repair import end_repair
from wherry.node.protocol import Placement

CPU = ("cpu", "cpuacct")
_FRESH_PROC = ("unshare", "--mount", "--propagation", "slave", "--mount-proc", "--")
"""Gives the worker of a dump a /proc of its own. The kernel keeps the entries of /proc/PID/map_files with the file mode
that a mapping had when it was first looked at, also when another file is mapped at the same addresses by then. A dump
after a round, or after a move that was taken back, would read how the file of an earlier mapping was opened, and the
restore would open the new one so (mmap: EACCES)."""
_NET_KEY = "wherry-net"
"""Key of the node's network namespace in the images. It is never dumped: each placement has its own."""


class _Engine(ABC):
    """CRIU at one host of a move. `act` is what it does there; `netns` is the host's network namespace."""

    act = ""

    def __init__(self, place: Placement, layout: Layout, netns: str) -> None:
        self._place, self._layout, self._netns = place, layout, netns
        self._group = Cgroup(place.cgroup)
        self._argv = criu_probe.find().argv
        self._descriptors: dict[str, int] = {}
        self.worker: criu_rpc.Worker | None = None
        self._pass = 0

    @property
    def images(self) -> Path:
        """The images of the current pass."""
        return self._layout.images / str(self._pass)

    def begin_images(self, number: int) -> None:
        """Makes the directory of the images of a pass."""
        self._pass = number
        self.images.mkdir()

    def _start(self, keep: Sequence[int], sends: bool = False, group: Cgroup | None = None) -> None:
        enter = [str(native_program("wherry-ns")), "--net", self._netns]
        if group is not None:
            enter += ["--cgroup", group.freezer_procs_file()]
        fresh = _FRESH_PROC if sends else ()
        self.worker = criu_rpc.Worker([*enter, "--", *fresh, *self._argv], keep, sends, group)

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
            "timeout": int(progress_bounds.total(self._place.node.memory)),
        }

    def _hold(self, name: str, descriptor: int) -> None:
        """Keeps a descriptor until `close`, in place of an earlier one of this name."""
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        self._descriptors[name] = descriptor

    def _request(
        self, kind: int, options: dict[str, object], stage: Callable[[str, int], None], bound: Callable[..., Bound]
    ) -> None:
        worker = self.worker
        if worker is None:
            raise Failed(Code.MOVE_FAILED, f"the {self.act} was not prepared")
        try:
            worker.request(kind, options, bound(worker.work()), stage)
        except Failed as error:
            with contextlib.suppress(Failed):  # this error is the first one, and `close` ends the worker
                self._give_up(worker)
            if error.code == Code.CANCELLED:
                raise
            reason = criu_rpc.first_error(self._layout.images / f"{self.act}.log")
            raise Failed(
                error.code,
                f"CRIU could not {self.act} node {self._place.node.name}",
                self._reason(str(error) if error.code == Code.TIMED_OUT else reason or str(error)),
                "wherry event list",
            ) from None
        self.worker = None
        worker.close()

    @abstractmethod
    def _give_up(self, worker: criu_rpc.Worker) -> None:
        """Ends a worker after an error."""

    @abstractmethod
    def _reason(self, reason: str) -> str:
        """The reason of a failure, with what this host knows besides."""

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class CriuDump(_Engine):
    """The rounds and the dump of a node."""

    act = "dump"

    def __init__(self, place: Placement, layout: Layout, netns: str, limit: RateLimit) -> None:
        super().__init__(place, layout, netns)
        self._limit, self._bounds = limit, MoveBounds(place.node.memory, limit.rate)
        self._pages: Sender | None = None

    def begin_pass(self, pages: Sender) -> None:
        """Starts the worker of the next round or of the last pass, which sends memory over `pages`."""
        self._pages = pages
        self._start((pages.fileno(),), sends=True)

    def pre_dump(self, look: Look) -> None:
        """Sends the pages that were written since the last pass, while the node runs."""
        self._dump(criu_rpc.PRE_DUMP, {"track_mem": True}, (), look)

    def dump(self, external: Sequence[str], look: Look) -> float | None:
        """Sends the remaining pages of the frozen node, and writes its images; how long CRIU says it was frozen."""
        options = {
            "leave_running": True,
            "tcp_established": True,
            "file_locks": True,
            "freeze_cgroup": self._group.freezer_dir(),
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "track_mem": self._pass > 0,
        }
        self._dump(criu_rpc.DUMP, options, external, look)
        return criu_rpc.engine_seconds(self._layout.images / "stats-dump")

    def close(self) -> None:
        """Closes descriptors and ends the worker. Idempotent."""
        self._close_descriptors()
        if worker := self.worker:
            worker.close()
            self.worker = None

    def _dump(self, kind: int, more: Mapping[str, object], external: Sequence[str], look: Look) -> None:
        pid, name = first_process(self._place), self._place.node.name
        if pid is None:
            raise Failed(Code.MOVE_FAILED, f"node {name} has no first process", "", "wherry status")
        pages, frozen = self._pages, kind == criu_rpc.DUMP
        if pages is None:
            raise Failed(Code.MOVE_FAILED, f"the dump of node {name} was not prepared")
        options = {
            **self._common(),
            "pid": pid,
            "ps": {"fd": pages.fileno()},
            "external": [
                f"net[{os.stat(self._place.netns).st_ino}]:{_NET_KEY}",
                *(f"mnt[{bind.inside}]:{bind.name}" for bind in (*self._layout.binds, *self._layout.masks)),
                *external,
            ],
            "ghost_limit": min(self._place.node.memory, 2**32 - 1),
            **more,
        }
        if self._pass:
            options["parent_img"] = f"../{self._pass - 1}"
        sending = _Sending(pages, look)
        theirs = [work_of_group(self._group)] if frozen else []

        def bound(*signs: Sign) -> Bound:
            every = (*signs, pages.traffic(), *theirs, sending.look)
            return self._bounds.of_sending("CRIU's dump", pages.round_trip(), *every, frozen=frozen)

        if self.worker:
            with contextlib.suppress(OSError):  # it has ended, which the request finds
                self._hold("mounts", self.worker.open_mounts())
        try:
            # CRIU sets TCP_CORK; without uncork the last partial segment is held back for up to 200 ms
            with self._limit.sending(pages):
                self._request(kind, options, sending.uncork, bound)
        except Failed as error:
            raise sending.ended or error from None
        pages.end()

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

    def __init__(self, place: Placement, layout: Layout, netns: str, own_group: Cgroup) -> None:
        super().__init__(place, layout, netns)
        self._own_group = own_group
        self._bounds = MoveBounds(place.node.memory)

    def prepare(self) -> None:
        """Starts the worker."""
        self._descriptors["net"] = os.open(self._place.netns, os.O_RDONLY | os.O_CLOEXEC)
        self.inherit(())

    def inherit(self, descriptors: Sequence[int]) -> None:
        """Starts the worker, anew if it runs, so that it inherits these descriptors under the same numbers."""
        if worker := self.worker:
            self.worker = None
            worker.close()
        self._own_group.create()
        self._start((self._descriptors["net"], *descriptors), group=self._own_group)

    def page_server(self) -> list[str]:
        """The command of the receiver of the pass's memory; `{fd}` is its connection."""
        server = [*self._argv, "page-server", "--ps-socket", "{fd}", "--images-dir", str(self.images)]
        if self._pass:
            server += ["--prev-images-dir", f"../{self._pass - 1}", "--track-mem"]
        return server

    def restore(self, inherited: Sequence[Mapping[str, object]], cancelled: Callable[[], object]) -> float | None:
        """Restores the node, frozen before its first instruction; the seconds that CRIU says it took."""
        group, layout = self._group, self._layout

        def stage(script: str, pid: int) -> None:
            # until the freeze it shares the CPU with CRIU, not with the ranks that run at the destination
            if script == "setup-namespaces":
                group.add(pid, [c for c in CONTROLLERS if c not in CPU])
            elif script == "pre-resume":
                group.freeze()

        options = {
            **self._common(),
            "root": str(layout.root),
            "tcp_established": True,
            "file_locks": True,
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "external": [f"mnt[{bind.name}]:{bind.outside}" for bind in (*layout.binds, *layout.masks)],
            "inherit_fd": [{"key": _NET_KEY, "fd": self._descriptors["net"]}, *inherited],
            "auto_dedup": True,
        }
        restored = work_of_group(group)

        def bound(*signs: Sign) -> Bound:
            return self._bounds.of_step("CRIU's restore", restored, *signs, cancelled=cancelled)

        self._request(criu_rpc.RESTORE, options, stage, bound)
        return criu_rpc.engine_seconds(layout.images / "stats-restore")

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
        return f"host {self._place.host} is out of memory" if self._group.out_of_memory() else reason


class _Sending:
    """Progress of a dump that sends memory; its connection is cut when the move is cancelled."""

    def __init__(self, pages: Sender, look: Look) -> None:
        self._pages, self._look = pages, look
        self.ended: WherryError | None = None
        """The exception that `look` raised. The connection was cut then, and CRIU undoes the dump."""

    def uncork(self, _script: str, _pid: int) -> None:
        """Called at each stage of CRIU."""
        self._pages.uncork()

    def look(self) -> bool:
        """A sign of progress of the other host."""
        if not self.ended:
            try:
                return self._look(f"{format_size(self._pages.sent())} sent")
            except WherryError as error:
                self.ended = error
                self._pages.cut()
        return False


def work_of_group(group: Cgroup) -> Sign:
    """A sign of progress of the processes in a cgroup; none while it is frozen, when cgroup v1 shows them in state D
    as if they waited for a disk."""
    work = work_of(group.pids)
    return lambda: work() and not group.frozen()
