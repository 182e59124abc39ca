"""The engine of a container's move: CRIU, with the workers of a dump and of a restore started before they are needed.

It knows CRIU's options, images and errors; the steps of a move and what is sent where are the mover's and the
transport's. Invariant: after `close` no worker and no descriptor of this process is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.paths import native_program
from wherry.base.progress import Progress
from wherry.base.units import format_size
from wherry.fabric.cgroup import CONTROLLERS, Cgroup
from wherry.fabric.protocol import Fabric
from wherry.node.container import progress_bounds
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.criu import rpc as criu_rpc
from wherry.node.container.mounts import Layout
from wherry.node.container.processes import first_process
from wherry.node.container.progress_bounds import Bound, Sign, work_of
from wherry.node.container.streams import Stream, receive_tree
from wherry.node.container.tcp_repair import end_repair
from wherry.node.container.transport import MoveTransport
from wherry.node.protocol import Placement

CPU = ("cpu", "cpuacct")
_FRESH_PROC = ("unshare", "--mount", "--propagation", "slave", "--mount-proc", "--")
"""Gives the worker of a dump a /proc of its own. The kernel keeps the entries of /proc/PID/map_files with the file mode
that a mapping had when it was first looked at, also when another file is mapped at the same addresses by then. A dump
after a round, or after a move that was taken back, would read how the file of an earlier mapping was opened, and the
restore would open the new one so (mmap: EACCES)."""
_NET_KEY = "wherry-net"
"""Key of the node's network namespace in the images. It is never dumped: each placement has its own."""


class CriuEngine:
    """CRIU for one move from `source` to `destination`, each a placement with its layout. `group` is a cgroup for the
    restore, which is killed as a whole."""

    def __init__(
        self,
        fabric: Fabric,
        transport: MoveTransport,
        source: tuple[Placement, Layout],
        destination: tuple[Placement, Layout],
        group: Cgroup,
    ) -> None:
        self._fabric, self._transport = fabric, transport
        self._source, self._from = source
        self._destination, self._to = destination
        self._group = group
        self._argv: tuple[str, ...] = ()
        self.workers: dict[str, criu_rpc.Worker] = {}
        self._descriptors: dict[str, int] = {}
        self._pass = 0

    def prepare(self) -> None:
        """Finds the CRIU that works here and starts the worker of the restore."""
        self._argv = criu_probe.find().argv
        self._descriptors["net"] = os.open(self._destination.netns, os.O_RDONLY | os.O_CLOEXEC)
        self._group.create()
        self.inherit(())

    def inherit(self, descriptors: Sequence[int]) -> None:
        """Starts the worker of the restore anew, so that it inherits these descriptors under the same numbers."""
        if worker := self.workers.pop("restore", None):
            worker.close()
            self._group.create()
        keep = (self._descriptors["net"], *descriptors)
        self.workers["restore"] = self._worker(self._destination.host, *keep, group=self._group)

    def begin_pass(self, number: int) -> None:
        """Sets up the image directories, the page server and the worker of the next round or of the last pass."""
        self._pass = number
        for layout in (self._from, self._to):
            self.images(layout).mkdir()
        server = [*self._argv, "page-server", "--ps-socket", "{fd}", "--images-dir", str(self.images(self._to))]
        if number:
            server += ["--prev-images-dir", f"../{number - 1}", "--track-mem"]
        self._transport.open("pages", server)
        self._transport.open("images", receive_tree(self.images(self._to)), stdin=True)
        pages = self._transport.streams["pages"].fileno()
        self.workers["dump"] = self._worker(self._source.host, pages, sends=True)

    def next_pass(self) -> None:
        """After a round."""
        self.begin_pass(self._pass + 1)

    def images(self, layout: Layout) -> Path:
        """The images of the current pass."""
        return layout.images / str(self._pass)

    def pre_dump(self, progress: Progress) -> None:
        """Sends the pages that were written since the last pass, while the node runs."""
        self._dump(criu_rpc.PRE_DUMP, {"track_mem": True}, (), progress)

    def dump(self, external: Sequence[str], progress: Progress) -> None:
        """Sends the remaining pages of the frozen node, and writes its images."""
        options = {
            "leave_running": True,
            "tcp_established": True,
            "file_locks": True,
            "freeze_cgroup": Cgroup(self._source.cgroup).freezer_dir(),
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "track_mem": self._pass > 0,
        }
        self._dump(criu_rpc.DUMP, options, external, progress)

    def dump_seconds(self) -> float | None:
        """The time that CRIU itself had the node frozen."""
        return criu_rpc.engine_seconds(self._from.images / "stats-dump")

    def restore(self, inherited: Sequence[Mapping[str, object]]) -> float | None:
        """Restores the node, frozen before its first instruction; the seconds that CRIU says it took."""
        group = Cgroup(self._destination.cgroup)

        def stage(script: str, pid: int) -> None:
            # until the freeze it shares the CPU with CRIU, not with the ranks that run at the destination
            if script == "setup-namespaces":
                group.add(pid, [c for c in CONTROLLERS if c not in CPU])
            elif script == "pre-resume":
                group.freeze()

        options = {
            **self._common("restore", self.images(self._to)),
            "root": str(self._to.root),
            "tcp_established": True,
            "file_locks": True,
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "external": [f"mnt[{bind.name}]:{bind.outside}" for bind in (*self._to.binds, *self._to.masks)],
            "inherit_fd": [{"key": _NET_KEY, "fd": self._descriptors["net"]}, *inherited],
            "auto_dedup": True,
        }
        restored = work_of_group(group)

        def bound(*signs: Sign) -> Bound:
            return self._transport.bound("CRIU's restore", restored, *signs)

        self._request("restore", criu_rpc.RESTORE, options, self._to, stage, bound)
        return criu_rpc.engine_seconds(self._to.images / "stats-restore")

    def close(self) -> None:
        """Closes descriptors and ends the workers; a restore is killed with everything that it forked. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
        for act, worker in self.workers.items():
            if act == "restore":
                worker.kill()
            worker.close()
        self.workers = {}

    def _worker(self, host: str, *keep: int, sends: bool = False, group: Cgroup | None = None) -> criu_rpc.Worker:
        enter = [str(native_program("wherry-ns")), "--net", self._fabric.host_netns(host)]
        if group is not None:
            enter += ["--cgroup", group.freezer_procs_file()]
        fresh = _FRESH_PROC if sends else ()
        return criu_rpc.Worker([*enter, "--", *fresh, *self._argv], keep, sends, group)

    def _common(self, act: str, images: Path) -> dict[str, object]:
        for name, path in (("images", images), ("work", images.parent)):
            self._hold(name, criu_rpc.open_directory(path))
        return {
            "images_dir_fd": self._descriptors["images"],
            "work_dir_fd": self._descriptors["work"],
            "log_file": f"{act}.log",
            "log_level": 2,
            "manage_cgroups_mode": criu_rpc.IGNORE_CGROUPS,
            "skip_file_rwx_check": True,
            "timeout": int(progress_bounds.total(self._source.node.memory)),
        }

    def _hold(self, name: str, descriptor: int) -> None:
        """Keeps a descriptor until `close`, in place of an earlier one of this name."""
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        self._descriptors[name] = descriptor

    def _dump(self, kind: int, more: Mapping[str, object], external: Sequence[str], progress: Progress) -> None:
        pid = first_process(self._source)
        if pid is None:
            raise Failed(Code.MOVE_FAILED, f"node {self._source.node.name} has no first process", "", "wherry status")
        net = os.stat(self._source.netns).st_ino
        pages, frozen = self._transport.streams["pages"], kind == criu_rpc.DUMP
        options = {
            **self._common("dump", self.images(self._from)),
            "pid": pid,
            "ps": {"fd": pages.fileno()},
            "external": [
                f"net[{net}]:{_NET_KEY}",
                *(f"mnt[{bind.inside}]:{bind.name}" for bind in (*self._from.binds, *self._from.masks)),
                *external,
            ],
            "ghost_limit": min(self._source.node.memory, 2**32 - 1),
            **more,
        }
        if self._pass:
            options["parent_img"] = f"../{self._pass - 1}"
        sending = _Sending(pages, progress)
        theirs = [work_of_group(Cgroup(self._source.cgroup))] if frozen else []

        def bound(*signs: Sign) -> Bound:
            every = (*signs, *pages.signs(), *theirs)
            return self._transport.bound_to_send("CRIU's dump", pages, *every, frozen=frozen, cancelled=sending.look)

        if worker := self.workers.get("dump"):
            with contextlib.suppress(OSError):  # it has ended, which the request finds
                self._hold("mounts", worker.open_mounts())
        try:
            # CRIU sets TCP_CORK; without uncork the last partial segment is held back for up to 200 ms
            with self._transport.rate_limit.sending(pages):
                self._request("dump", kind, options, self._from, sending.uncork, bound)
        except Failed as error:
            raise sending.ended or error from None

    def _request(
        self,
        act: str,
        kind: int,
        options: dict[str, object],
        layout: Layout,
        stage: Callable[[str, int], None],
        bound: Callable[..., Bound],
    ) -> None:
        worker = self.workers.get(act)
        if worker is None:
            raise Failed(Code.MOVE_FAILED, f"the {act} was not prepared")
        try:
            worker.request(kind, options, bound(worker.work()), stage)
        except Failed as error:
            with contextlib.suppress(Failed):  # this error is the first one, and `close` ends the worker
                self._give_up(act, worker)
            if error.code == Code.CANCELLED:
                raise
            reason = criu_rpc.first_error(layout.images / f"{act}.log")
            if error.code == Code.TIMED_OUT:
                reason = str(error)
            if layout is self._to and Cgroup(self._destination.cgroup).out_of_memory():
                reason = f"host {self._destination.host} is out of memory"
            if layout is self._from:
                reason = f"{reason or error}{self._end_repair()}"
            raise Failed(
                error.code,
                f"CRIU could not {act} node {self._source.node.name}",
                reason or str(error),
                "wherry event list",
            ) from None
        del self.workers[act]
        worker.close()

    def _give_up(self, act: str, worker: criu_rpc.Worker) -> None:
        """Kills a restore. A dump only loses its connection: it must fail by itself to release the processes and their
        connections; if it does not, `close` kills it."""
        if act == "restore":
            worker.kill()
            return
        self._transport.streams["pages"].cut()
        worker.close()

    def _end_repair(self) -> str:
        """Ends repair mode after CRIU was killed while it held connections; a suffix for the error text if it did."""
        group = Cgroup(self._source.cgroup)
        with contextlib.suppress(Failed):
            group.freeze()
        ended = end_repair(group.pids())
        return (
            f"; {ended} connections were in repair mode, so messages may be lost: see wherry job list" if ended else ""
        )


class _Sending:
    """Progress of a dump that sends memory; its connection is cut when the move is cancelled."""

    def __init__(self, stream: Stream, progress: Progress) -> None:
        self._stream, self._progress = stream, progress
        self.ended: WherryError | None = None
        """The exception that `progress` raised. The connection was cut then, and CRIU undoes the dump."""

    def uncork(self, _script: str, _pid: int) -> None:
        """Called at each stage of CRIU."""
        self._stream.uncork()

    def look(self) -> None:
        """Called at each check of the dump's bound."""
        if self.ended:
            return
        try:
            self._progress(f"{format_size(self._stream.sent())} sent")
        except WherryError as error:
            self.ended = error
            self._stream.cut()


def work_of_group(group: Cgroup) -> Sign:
    """A sign of progress of the processes in a cgroup; none while it is frozen, when cgroup v1 shows them in state D
    as if they waited for a disk."""
    work = work_of(group.pids)
    return lambda: work() and not group.frozen()
