"""The steps of a container's move: stop-and-copy with CRIU, after rounds where the kernel tracks dirty pages.

    source                                   destination
    ------                                   -----------
    prepare   connections, CRIU worker       tmpfs, root, cgroup; page server and tar wait
    round n   CRIU pre-dump ---- pages --->  images/n          (the node runs)
    freeze    freezer cgroup
    transfer  CRIU dump -------- pages --->  images/last
              tar of private ----- tree -->  private
              tar of images --- metadata --> images/last
    restore                                  checksums of the received data
              compared     <----- sums ---   CRIU restore; frozen before the first instruction
              differences  ---- memory -->   corrected, if they are few
    release   kill                           |
    thaw                                     freezer cgroup thawed

Memory is sent to a tmpfs of the destination, never through a disk. The driver's `stop` removes everything that a
placement leaves on a host, so `roll_back`, `release` and `thaw` also work for a new mover after a crash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.paths import native_program
from wherry.base.progress import Progress, quiet
from wherry.base.units import format_size
from wherry.fabric.cgroup import CONTROLLERS, Cgroup, warm_up_attach
from wherry.fabric.protocol import Fabric
from wherry.model.objects import Round
from wherry.node.container import progress_bounds
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.criu import rpc as criu_rpc
from wherry.node.container.criu import soft_dirty
from wherry.node.container.fd_identity import require_own_sockets, require_same
from wherry.node.container.file_locks import FileLocks
from wherry.node.container.integrity import IntegrityCheck
from wherry.node.container.mounts import MS_NOSUID, Layout, mount, unmount_below
from wherry.node.container.movable import require_movable
from wherry.node.container.progress_bounds import Bound, Sign, never_cancelled, work_of
from wherry.node.container.streams import BackgroundTask, RateLimit, Stream, receive_tree
from wherry.node.container.tcp_repair import end_repair
from wherry.node.container.thread_attributes import AttributesOfNode
from wherry.node.container.timers import TimersOfNode, keep_clocks
from wherry.node.container.warm_connections import BACK, WarmConnections
from wherry.node.protocol import Placement, Transferred

if TYPE_CHECKING:
    from wherry.node.container.driver import ContainerDriver

_NICE = -15
"""Nice value of the moving thread, inherited by all that it starts, so that other load prolongs the downtime less."""
_FIRST_RUN_TIMEOUT = 0.2
"""Seconds to wait for a rank to run after the thaw: each one does, if only to sleep again, unless it ended."""
_SYN_RECEIVED, _LISTEN = "03", "0A"
_FREEZE_RETRIES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""Pauses in seconds between attempts to freeze: CRIU cannot dump a connection that is still in an accept queue."""
_CPU = ("cpu", "cpuacct")
_PASS_CONNECTIONS = ("pages", "images", BACK)
"""Connections that each round, and the transfer, uses once."""
_RECEIVERS = (b"\0page-server\0", b"\0--extract\0")
"""Arguments by which the receiving programs are found."""
_NET_KEY = "wherry-net"
"""Key of the node's network namespace in the images. It is never dumped: each placement has its own."""


class ContainerMover:
    """Moves one container between two placements."""

    def __init__(self, driver: ContainerDriver, fabric: Fabric, source: Placement, destination: Placement) -> None:
        self._driver = driver
        self._fabric = fabric
        self._source, self._destination = source, destination
        self._from, self._to = driver.layout(source), driver.layout(destination)
        self._locks = FileLocks(source.node.name, source.cgroup, self._from.private)
        self._engine: tuple[str, ...] = ()
        self._streams: dict[str, Stream] = {}
        self._workers: dict[str, criu_rpc.Worker] = {}
        self._verification: IntegrityCheck | None = None
        self._descriptors: dict[str, int] = {}
        self._released = False
        self._frozen_ranks: dict[int, int] = {}
        """CPU time in nanoseconds, by PID, of each restored rank before the thaw."""
        self._pass = 0
        self._rate_limit = RateLimit(None)
        self._connections: WarmConnections | None = None
        self._cancelled: Callable[[], object] = never_cancelled
        """Raises once the current step is cancelled."""
        self._original_priority: tuple[int, int] | None = None
        """Thread id and original nice value of the thread that runs the move."""

    def predict(self) -> tuple[int, float]:
        usage = self._driver.usage(self._source)
        return usage.memory + _tree_bytes(self._from.private), 0.05 + 0.004 * usage.processes

    def can_round(self) -> bool:
        return soft_dirty.tracked()

    def limit_rate(self, rate: float | None) -> None:
        self._rate_limit = RateLimit(rate)

    def prepare(self) -> None:
        self._require_own_sockets()  # before the node is frozen in vain
        require_movable(Cgroup(self._source.cgroup).pids())
        self._locks.require_carriable()
        self._raise_priority()
        self._engine = criu_probe.find().argv
        node = self._destination.node
        self._connect("tree", *_PASS_CONNECTIONS)
        self._driver.stop(self._destination)
        self._to.make(node.memory, self._destination.netns)
        group = Cgroup(self._destination.cgroup)
        group.create()
        group.limit(None, node.memory)
        group.weight(self._destination.cpus)
        group.prefer(True)
        for layout in (self._from, self._to):
            mount("wherry", layout.images, "tmpfs", MS_NOSUID, "mode=0700")
        self._open("tree", receive_tree(self._to.private), stdin=True)
        self._descriptors["net"] = os.open(self._destination.netns, os.O_RDONLY | os.O_CLOEXEC)
        group = self._driver.engine_group(self._destination)
        group.create()
        self._workers["restore"] = self._worker(self._destination.host, self._descriptors["net"], group=group)
        self._open_pass(0)

    def round(self, number: int, progress: Progress = quiet) -> Round:
        began = time.monotonic()
        self._connect(*_PASS_CONNECTIONS)  # for the next pass
        self._dump(criu_rpc.PRE_DUMP, {"track_mem": True}, progress)
        pages = self._streams.pop("pages")
        sent = pages.finish(lambda *signs: self._sending("the memory", pages, *signs, frozen=False))
        self._streams.pop("images").close()
        self._open_pass(self._pass + 1)
        return Round(number=number, bytes=sent, seconds=time.monotonic() - began)

    def freeze(self, post_copy: bool = False) -> None:
        group = Cgroup(self._source.cgroup)
        group.prefer(True)
        group.limit(None, self._source.node.memory)
        for pause in _FREEZE_RETRIES:
            group.freeze()
            if not _in_flight(group.pids()) and not self._locks.obstacle():
                break
            group.thaw()
            time.sleep(pause)
        else:
            group.freeze()
            if obstacle := self._locks.obstacle():
                raise obstacle
        self._require_own_sockets()

    def _require_own_sockets(self) -> None:
        """Checked for unprivileged users only: root gains nothing by a name of its own."""
        if self._source.owner.uid != 0:
            require_own_sockets(self._source.netns, self._from.private)

    def transfer(self, progress: Progress = quiet) -> Transferred:
        self._cancelled = lambda: progress("")
        try:
            return self._transfer(progress)
        finally:
            self._cancelled = never_cancelled

    def _transfer(self, progress: Progress) -> Transferred:
        tree = self._streams["tree"]
        if carried := self._locks.take():
            self._workers.pop("restore").close()
            self._workers["restore"] = self._worker(self._destination.host, self._descriptors["net"], *carried)
        tree_sent = BackgroundTask(lambda: self._send(tree, self._from.private))
        try:
            self._dump(
                criu_rpc.DUMP,
                {
                    "leave_running": True,
                    "tcp_established": True,
                    "file_locks": True,
                    "freeze_cgroup": Cgroup(self._source.cgroup).freezer_dir(),
                    "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
                    "track_mem": self._pass > 0,
                },
                progress,
            )
            warm = BackgroundTask(warm_up_attach)
            images = self._streams["images"]
            self._send(images, self._images(self._from))
            warm.result()
        finally:
            tree_sent.result()
        sent = sum(self._finish(self._streams.pop(name)) for name in ("pages", "images", "tree"))
        return Transferred(bytes=sent, frozen=criu_rpc.engine_seconds(self._from.images / "stats-dump"))

    def restore(self, progress: Progress = quiet) -> float | None:
        self._cancelled = lambda: progress("")
        try:
            return self._restore(Cgroup(self._destination.cgroup))
        finally:
            self._cancelled = never_cancelled

    def _restore(self, group: Cgroup) -> float | None:

        def stage(script: str, pid: int) -> None:
            # until the freeze it shares the CPU with CRIU, not with the ranks that run at the destination
            if script == "setup-namespaces":
                group.add(pid, [c for c in CONTROLLERS if c not in _CPU])
            elif script == "pre-resume":
                group.freeze()

        verification = self._verification
        if verification is None:
            raise Failed(Code.MOVE_FAILED, "the restore was not prepared")
        verification.list(lambda *signs: self._bound("the checksums of the received data", *signs))
        inherited = self._locks.inherit(self._images(self._to))
        options = {
            **self._common("restore", self._images(self._to)),
            "root": str(self._to.root),
            "tcp_established": True,
            "file_locks": True,
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "external": [f"mnt[{bind.name}]:{bind.outside}" for bind in (*self._to.binds, *self._to.masks)],
            "inherit_fd": [{"key": _NET_KEY, "fd": self._descriptors["net"]}, *inherited],
            "auto_dedup": True,
        }
        keep_clocks(self._images(self._to))
        originals = Cgroup(self._source.cgroup).pids()
        timers, attributes = TimersOfNode(originals), AttributesOfNode(originals)
        restored = work_of(group.pids)
        self._request(
            "restore", criu_rpc.RESTORE, options, self._to, stage,
            lambda *signs: self._bound("CRIU's restore", restored, *signs),
        )  # fmt: skip
        verification.require_same(group.freezer_procs_file(), lambda *signs: self._bound("the comparison", *signs))
        if self._destination.owner.uid != 0:
            require_same(Cgroup(self._source.cgroup).pids(), group.pids(), self._to.private)
        self._locks.require_kept(group.pids())
        attributes.carry_to(group.pids())
        timers.carry_to(group.pids())
        self._frozen_ranks = {pid: _cpu_time(pid) for pid in group.pids() if _is_rank(pid)}
        return criu_rpc.engine_seconds(self._to.images / "stats-restore")

    def switched(self) -> bool:
        return False

    def release(self) -> None:
        """Does not wait until the processes are gone: freeing a large memory takes the kernel a while."""
        self._released = True
        source = Cgroup(self._source.cgroup)
        if self._connections is None:  # a new mover after a crash: the source may not be frozen, and could fork
            source.kill()
        else:
            source.kill_all()

    def thaw(self) -> None:
        self._locks.await_gone()
        Cgroup(self._destination.cgroup).thaw()

    def await_first_run(self) -> float | None:
        began = time.monotonic()
        while self._frozen_ranks and time.monotonic() - began < _FIRST_RUN_TIMEOUT:
            if any(_cpu_time(pid) > before for pid, before in self._frozen_ranks.items()):
                return time.monotonic() - began
            time.sleep(0.0005)
        return None

    def roll_back(self) -> None:
        """Thaws the source as soon as nothing of the destination can run; the rest is removed afterwards, so that it
        does not prolong the freeze."""
        if self._connections is None:
            _end_receivers(self._to.directory)
        self._end_workers()
        for group in (self._driver.engine_group(self._destination), Cgroup(self._destination.cgroup)):
            group.kill()
        self._await_engine()
        source = Cgroup(self._source.cgroup)
        end_repair(source.pids())
        source.thaw()
        _restore_limits(self._source)
        self.close()
        self._driver.stop(self._destination)

    def _end_workers(self) -> None:
        for act, worker in self._workers.items():
            if act == "restore":
                worker.kill()
            worker.close()
        self._workers = {}

    def close(self) -> None:
        self._end_workers()
        for stream in self._streams.values():
            stream.close()
        self._end_verification()
        self._locks.close()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._streams, self._descriptors = {}, {}
        self._reset_priority()
        for layout in (self._from, self._to):
            unmount_below(layout.images)
        if self._released or not Cgroup(self._source.cgroup).pids():
            self._driver.stop(self._source)
            _restore_limits(self._destination)

    def _raise_priority(self) -> None:
        thread = threading.get_native_id()
        self._original_priority = (thread, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, min(_NICE, self._original_priority[1]))

    def _reset_priority(self) -> None:
        if self._original_priority is not None:
            os.setpriority(os.PRIO_PROCESS, *self._original_priority)
            self._original_priority = None

    def _images(self, layout: Layout) -> Path:
        return layout.images / str(self._pass)

    def _open_pass(self, number: int) -> None:
        """Sets up directories, receivers and the dumping worker for the next round or the last pass."""
        self._pass = number
        for layout in (self._from, self._to):
            self._images(layout).mkdir()
        server = [*self._engine, "page-server", "--ps-socket", "{fd}", "--images-dir", str(self._images(self._to))]
        if number:
            server += ["--prev-images-dir", f"../{number - 1}", "--track-mem"]
        self._open("pages", server)
        self._open("images", receive_tree(self._images(self._to)), stdin=True)
        self._workers["dump"] = self._worker(self._source.host, self._streams["pages"].fileno(), sends=True)
        self._end_verification()
        self._verification = IntegrityCheck(
            self._connection(BACK),
            (self._images(self._from), self._from.private),
            (self._images(self._to), self._to.private),
            Cgroup(self._source.cgroup).freezer_procs_file(),
        )

    def _open(self, what: str, receiver: list[str], stdin: bool = False) -> None:
        self._streams[what] = Stream(what, self._connection(what), receiver, stdin)

    def _connect(self, *names: str) -> None:
        if self._connections is None:
            self._connections = WarmConnections(self._fabric, self._source.host, self._destination.host)
        self._connections.begin(names, self._rate_limit)

    def _connection(self, name: str) -> tuple[socket.socket, socket.socket]:
        if self._connections is None:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {name} was not prepared", "", "report this")
        return self._connections.take(name)

    def _end_verification(self) -> None:
        if self._verification is not None:
            self._verification.close()
            self._verification = None

    def _worker(self, host: str, *keep: int, sends: bool = False, group: Cgroup | None = None) -> criu_rpc.Worker:
        enter = [str(native_program("wherry-ns")), "--net", self._fabric.host_netns(host)]
        if group is not None:
            enter += ["--cgroup", group.freezer_procs_file()]
        return criu_rpc.Worker([*enter, "--", *self._engine], keep, sends, group)

    def _send(self, stream: Stream, directory: Path) -> None:
        with self._rate_limit.sending(stream):
            stream.send_tree(directory, lambda *signs: self._sending(f"the {stream.what}", stream, *signs))

    def _finish(self, stream: Stream) -> int:
        return stream.finish(lambda *signs: self._sending(f"the {stream.what}", stream, *signs))

    def _bound(self, what: str, *signs: Sign) -> Bound:
        """The bound of a step on one host while the node is frozen."""
        whole = progress_bounds.total(self._source.node.memory)
        return Bound(what, progress_bounds.STALL, whole, *signs, cancelled=self._cancelled)

    def _sending(
        self,
        what: str,
        stream: Stream,
        *signs: Sign,
        frozen: bool = True,
        cancelled: Callable[[], object] | None = None,
    ) -> Bound:
        """The bound of a step that sends to the other host."""
        stall = progress_bounds.stall_sending(self._rate_limit.rate, stream.round_trip())
        if not frozen:
            stall = progress_bounds.while_it_runs(stall)
        whole = progress_bounds.total(self._source.node.memory, self._rate_limit.rate)
        return Bound(what, stall, whole, *signs, cancelled=cancelled or self._cancelled)

    def _common(self, act: str, images: Path) -> dict[str, object]:
        for name, path in (("images", images), ("work", images.parent)):
            if name in self._descriptors:
                os.close(self._descriptors.pop(name))
            self._descriptors[name] = criu_rpc.open_directory(path)
        return {
            "images_dir_fd": self._descriptors["images"],
            "work_dir_fd": self._descriptors["work"],
            "log_file": f"{act}.log",
            "log_level": 2,
            "manage_cgroups_mode": criu_rpc.IGNORE_CGROUPS,
            "skip_file_rwx_check": True,
            "timeout": int(progress_bounds.total(self._source.node.memory)),
        }

    def _await_engine(self) -> None:
        """Waits for a dump that outlived a killed daemon: CRIU still traces the processes and freezes them again."""
        group = Cgroup(self._source.cgroup)
        deadline = time.monotonic() + progress_bounds.total(self._source.node.memory)
        while any(_traced(pid) for pid in group.pids()) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _end_repair(self) -> str:
        """Ends repair mode after CRIU was killed while it held connections; a suffix for the error text if it did."""
        group = Cgroup(self._source.cgroup)
        with contextlib.suppress(Failed):
            group.freeze()
        ended = end_repair(group.pids())
        return (
            f"; {ended} connections were in repair mode, so messages may be lost: see wherry job list" if ended else ""
        )

    def _dump(self, kind: int, more: dict[str, object], progress: Progress) -> None:
        from wherry.node.container.driver import first_process

        pid = first_process(self._source)
        if pid is None:
            raise Failed(Code.MOVE_FAILED, f"node {self._source.node.name} has no first process", "", "wherry status")
        net = os.stat(self._source.netns).st_ino
        options = {
            **self._common("dump", self._images(self._from)),
            "pid": pid,
            "ps": {"fd": self._streams["pages"].fileno()},
            "external": [
                f"net[{net}]:{_NET_KEY}",
                *(f"mnt[{bind.inside}]:{bind.name}" for bind in (*self._from.binds, *self._from.masks)),
                *self._locks.external,
            ],
            "ghost_limit": min(self._source.node.memory, 2**32 - 1),
            **more,
        }
        if self._pass:
            options["parent_img"] = f"../{self._pass - 1}"
        pages, frozen = self._streams["pages"], kind == criu_rpc.DUMP
        sending = _Sending(pages, progress)
        theirs = [work_of(Cgroup(self._source.cgroup).pids)] if frozen else []

        def bound(*signs: Sign) -> Bound:
            every = (*signs, *pages.signs(), *theirs)
            return self._sending("CRIU's dump", pages, *every, frozen=frozen, cancelled=sending.look)

        try:
            # CRIU sets TCP_CORK; without uncork the last partial segment is held back for up to 200 ms
            with self._rate_limit.sending(pages):
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
        worker = self._workers.pop(act, None)
        if worker is None:
            raise Failed(Code.MOVE_FAILED, f"the {act} was not prepared")
        try:
            worker.request(kind, options, bound(worker.work()), stage)
        except Failed as error:
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
        finally:
            worker.close()

    def _give_up(self, act: str, worker: criu_rpc.Worker) -> None:
        """Kills a restore. A dump only loses its connection: it must fail by itself to release the processes and their
        connections; if it does not, `close` kills it."""
        if act == "restore":
            worker.kill()
            return
        self._streams["pages"].cut()
        worker.close()


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


def _restore_limits(place: Placement) -> None:
    """Restores the limits of a running node, which were lifted during the move."""
    group = Cgroup(place.cgroup)
    if group.pids():
        group.gather(_CPU)
        group.limit(place.cpus, place.node.memory)
        group.weight(place.cpus)
        group.weigh_parent()


def _in_flight(pids: list[int]) -> bool:
    """True when a TCP connection of the node is in an accept queue or in its handshake."""
    for pid in pids[:1]:
        for family in ("tcp", "tcp6"):
            try:
                lines = Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]
            except OSError:
                continue
            for state, queues in (line.split()[3:5] for line in lines):
                if state == _SYN_RECEIVED or (state == _LISTEN and int(queues.split(":")[1], 16)):
                    return True
    return False


def _is_rank(pid: int) -> bool:
    """True for an MPI rank: Open MPI's or MPICH's (PMI) rank variable is in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")) for entry in environment)


def _cpu_time(pid: int) -> int:
    """CPU time in nanoseconds (proc(5), schedstat); 0 for a process that ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _end_receivers(directory: Path) -> None:
    """Kills receivers that a killed daemon left, so that CRIU fails now, and not when everything has been sent."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if f"{directory}/".encode() in words and any(word in words for word in _RECEIVERS):
                os.kill(int(entry.name), signal.SIGKILL)


def _traced(pid: int) -> bool:
    try:
        return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _tree_bytes(directory: Path) -> int:
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue
    return total
