"""The steps of a container's move: stop-and-copy with CRIU, after rounds where the kernel tracks dirty pages.

    source                                   destination
    ------                                   -----------
    prepare   connections, workers ready     tmpfs, root, cgroup; page server and tar wait
    round n   CRIU pre-dump ---- pages --->  images/n          (the node runs)
    freeze    freezer cgroup
    transfer  CRIU dump -------- pages --->  images/last
              tar of private ----- tree -->  private
              tar of images --- metadata --> images/last
    restore                                  what arrived is summed up
              and compared <----- sums ---   CRIU restore; frozen before the first instruction
              what differs ---- memory -->   mended, if it is little
    release   kill                           |
    thaw                                     freezer cgroup thawed

Memory goes from the source's memory to a tmpfs of the destination, never through a disk. What a place leaves on a host
is removed by the driver's `stop`, so `roll_back`, `release` and `thaw` work also for a mover made anew after a crash.
"""

from __future__ import annotations

import contextlib
import math
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
from wherry.base.units import format_size
from wherry.fabric.cgroup import CONTROLLERS, Cgroup, ready_to_add
from wherry.fabric.protocol import Fabric
from wherry.model.objects import Round
from wherry.node import criu, criu_rpc, soft_dirty
from wherry.node.connections import BACK, Connections
from wherry.node.mounts import MS_NOSUID, Layout, mount, unmount_below
from wherry.node.protocol import During, Place, Transferred, quiet
from wherry.node.same_files import require_own_sockets, require_same
from wherry.node.streams import Background, Pace, Stream, receive_tree
from wherry.node.tcp_repair import end_repair
from wherry.node.verify import Verification

if TYPE_CHECKING:
    from wherry.node.container import ContainerDriver

_ENGINE_TIMEOUT, _ENGINE_RATE = 30, 20e6
"""A dump or a restore is given up after so many seconds, and one more for so many bytes that the node may have: a tenth
of what a loaded machine does, or of a slow link, of which what is sent may have to share its part with another stream.
CRIU itself may wait for ever for a restored process that has died."""
_URGENT = -15
"""Nice value of the thread that moves, and so of all that it starts: what runs beside prolongs the downtime less."""
_RAN_AGAIN = 0.2
"""Seconds to wait for a rank to run after the thaw: every one does, if only to sleep again, unless it is gone."""
_SYN_RECEIVED, _LISTEN = "03", "0A"
_SETTLE = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""Seconds that a node gets to accept connections that it was frozen before; CRIU cannot carry one in a queue."""
_CPU = ("cpu", "cpuacct")
_OF_A_PASS = ("pages", "images", BACK)
"""Connections that each round, and the transfer, has of its own."""
_RECEIVERS = (b"\0page-server\0", b"\0--extract\0")
"""Words of the programs that wait for what is sent."""
_NET_KEY = "wherry-net"
"""What the images call the node's network namespace, which is never dumped: each place has its own."""


class ContainerMover:
    """Moves one container between two places."""

    def __init__(self, driver: ContainerDriver, fabric: Fabric, source: Place, destination: Place) -> None:
        self._driver = driver
        self._fabric = fabric
        self._source, self._destination = source, destination
        self._from, self._to = driver.layout(source), driver.layout(destination)
        self._engine: tuple[str, ...] = ()
        self._streams: dict[str, Stream] = {}
        self._workers: dict[str, criu_rpc.Worker] = {}
        self._verification: Verification | None = None
        self._descriptors: dict[str, int] = {}
        self._released = False
        self._frozen_ranks: dict[int, int] = {}
        """Process id and CPU time, in nanoseconds, of each rank while it waits to be thawed."""
        self._pass = 0
        self._pace = Pace(None)
        self._connections: Connections | None = None
        self._hurried: tuple[int, int] | None = None
        """Thread id and nice value of the thread that prepared, which is the one that does the other steps."""

    def predict(self) -> tuple[int, float]:
        usage = self._driver.usage(self._source)
        return usage.memory + _tree_bytes(self._from.private), 0.05 + 0.004 * usage.processes

    def can_round(self) -> bool:
        return soft_dirty.tracked()

    def pace(self, rate: float | None) -> None:
        self._pace = Pace(rate)

    def prepare(self) -> None:
        self._require_own_sockets()  # before the node stands still for nothing
        self._hurry()
        self._engine = criu.find().argv
        node = self._destination.node
        self._connect("tree", *_OF_A_PASS)
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
        self._workers["restore"] = self._worker(self._destination.host, self._descriptors["net"])
        self._open_pass(0)

    def round(self, number: int, during: During = quiet) -> Round:
        began = time.monotonic()
        self._connect(*_OF_A_PASS)  # the next one's
        self._dump(criu_rpc.PRE_DUMP, {"track_mem": True}, during)
        sent = self._streams.pop("pages").finish(self._patience_to_send())
        self._streams.pop("images").close()
        self._open_pass(self._pass + 1)
        return Round(number=number, bytes=sent, seconds=time.monotonic() - began)

    def freeze(self, post_copy: bool = False) -> None:
        group = Cgroup(self._source.cgroup)
        group.prefer(True)
        group.limit(None, self._source.node.memory)
        for pause in _SETTLE:
            group.freeze()
            if not _in_flight(group.pids()):
                break
            group.thaw()
            time.sleep(pause)
        else:
            group.freeze()
        self._require_own_sockets()

    def _require_own_sockets(self) -> None:
        """Of users alone: root's names give root nothing."""
        if self._source.owner.uid != 0:
            require_own_sockets(self._source.netns, self._from.private)

    def transfer(self, during: During = quiet) -> Transferred:
        tree = self._streams["tree"]
        tree_sent = Background(lambda: self._send(tree, self._from.private))
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
                during,
            )
            warm = Background(ready_to_add)
            images = self._streams["images"]
            self._send(images, self._images(self._from))
            warm.result()
        finally:
            tree_sent.result()
        patience = self._patience_to_send()
        sent = sum(self._streams.pop(name).finish(patience) for name in ("pages", "images", "tree"))
        return Transferred(bytes=sent, frozen=criu_rpc.engine_seconds(self._from.images / "stats-dump"))

    def restore(self) -> float | None:
        group = Cgroup(self._destination.cgroup)

        def stage(script: str, pid: int) -> None:
            # until it is frozen it shares the CPU with CRIU, not with the ranks that run at the destination
            if script == "setup-namespaces":
                group.add(pid, [c for c in CONTROLLERS if c not in _CPU])
            elif script == "pre-resume":
                group.freeze()

        options = {
            **self._common("restore", self._images(self._to)),
            "root": str(self._to.root),
            "tcp_established": True,
            "file_locks": True,
            "network_lock": criu_rpc.NETWORK_LOCK_SKIP,
            "external": [f"mnt[{bind.name}]:{bind.outside}" for bind in (*self._to.binds, *self._to.masks)],
            "inherit_fd": [{"key": _NET_KEY, "fd": self._descriptors["net"]}],
            "auto_dedup": True,
        }
        verification = self._verification
        if verification is None:
            raise Failed(Code.MOVE_FAILED, "the restore was not prepared")
        verification.list(self._patience())
        self._request("restore", criu_rpc.RESTORE, options, self._to, stage, self._patience())
        verification.require_same(group.freezer_procs_file(), self._patience())
        if self._destination.owner.uid != 0:
            require_same(Cgroup(self._source.cgroup).pids(), group.pids(), self._to.private)
        self._frozen_ranks = {pid: _cpu_time(pid) for pid in group.pids() if _is_rank(pid)}
        return criu_rpc.engine_seconds(self._to.images / "stats-restore")

    def switched(self) -> bool:
        return False

    def release(self) -> None:
        """Giving back a large memory takes the kernel a while, which nobody needs to wait for before the thaw."""
        self._released = True
        source = Cgroup(self._source.cgroup)
        if self._connections is None:  # made anew: who knows whether it is still frozen, and cannot fork
            source.kill()
        else:
            source.condemn()

    def thaw(self) -> None:
        Cgroup(self._destination.cgroup).thaw()

    def ran_again(self) -> float | None:
        began = time.monotonic()
        while self._frozen_ranks and time.monotonic() - began < _RAN_AGAIN:
            if any(_cpu_time(pid) > before for pid, before in self._frozen_ranks.items()):
                return time.monotonic() - began
            time.sleep(0.0005)
        return None

    def roll_back(self) -> None:
        _end_receivers(self._to.directory)
        self.close()
        self._driver.stop(self._destination)
        self._await_engine()
        group = Cgroup(self._source.cgroup)
        end_repair(group.pids())
        group.thaw()
        _settle(self._source)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        for worker in self._workers.values():
            worker.close()
        self._end_verification()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._streams, self._workers, self._descriptors = {}, {}, {}
        self._calm()
        for layout in (self._from, self._to):
            unmount_below(layout.images)
        if self._released or not Cgroup(self._source.cgroup).pids():
            self._driver.stop(self._source)
            _settle(self._destination)

    def _hurry(self) -> None:
        thread = threading.get_native_id()
        self._hurried = (thread, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, min(_URGENT, self._hurried[1]))

    def _calm(self) -> None:
        if self._hurried is not None:
            os.setpriority(os.PRIO_PROCESS, *self._hurried)
            self._hurried = None

    def _images(self, layout: Layout) -> Path:
        return layout.images / str(self._pass)

    def _open_pass(self, number: int) -> None:
        """Readies directories, receivers and the dumping worker for the next round or the last pass."""
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
        self._verification = Verification(
            self._taken(BACK),
            (self._images(self._from), self._from.private),
            (self._images(self._to), self._to.private),
            Cgroup(self._source.cgroup).freezer_procs_file(),
        )

    def _open(self, what: str, receiver: list[str], stdin: bool = False) -> None:
        self._streams[what] = Stream(what, self._taken(what), receiver, stdin)

    def _connect(self, *names: str) -> None:
        if self._connections is None:
            self._connections = Connections(self._fabric, self._source.host, self._destination.host)
        self._connections.begin(names, self._pace)

    def _taken(self, name: str) -> tuple[socket.socket, socket.socket]:
        if self._connections is None:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {name} was not prepared")
        return self._connections.take(name)

    def _end_verification(self) -> None:
        if self._verification is not None:
            self._verification.close()
            self._verification = None

    def _worker(self, host: str, *keep: int, sends: bool = False) -> criu_rpc.Worker:
        enter = [str(native_program("wherry-ns")), "--net", self._fabric.host_netns(host), "--"]
        return criu_rpc.Worker([*enter, *self._engine], keep, sends)

    def _send(self, stream: Stream, directory: Path) -> None:
        with self._pace.sending(stream):
            stream.send_tree(directory, self._patience_to_send())

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
            "timeout": self._patience(),
        }

    def _await_engine(self) -> None:
        """Waits for a dump that the daemon was killed under: CRIU traces the processes, freezes them again, lets go."""
        group, deadline = Cgroup(self._source.cgroup), time.monotonic() + self._patience()
        while any(_traced(pid) for pid in group.pids()) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _end_repair(self) -> str:
        """What to tell when CRIU was killed while it held connections: it had thawed the processes to read them."""
        group = Cgroup(self._source.cgroup)
        with contextlib.suppress(Failed):
            group.freeze()
        ended = end_repair(group.pids())
        return f"; it held {ended} connections, so messages may be lost: see wherry job list" if ended else ""

    def _patience(self) -> int:
        """Seconds for what reads or writes the node's memory on its host."""
        return _ENGINE_TIMEOUT + int(self._source.node.memory / _ENGINE_RATE)

    def _patience_to_send(self) -> int:
        """Seconds for what takes it to the other host."""
        slowest = min(_ENGINE_RATE, (self._pace.rate or math.inf) / 8 / 2)
        return _ENGINE_TIMEOUT + int(self._source.node.memory / slowest)

    def _dump(self, kind: int, more: dict[str, object], during: During) -> None:
        from wherry.node.container import first_process

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
            ],
            "ghost_limit": min(self._source.node.memory, 2**32 - 1),
            **more,
        }
        if self._pass:
            options["parent_img"] = f"../{self._pass - 1}"
        pages = self._streams["pages"]
        sending = _Sending(pages, during)
        try:
            # CRIU corks the connection; its last words would wait 200 ms in the kernel for more to send
            with self._pace.sending(pages):
                self._request("dump", kind, options, self._from, sending.uncork, self._patience(), sending.gets_on)
        except Failed as error:
            raise sending.ended or error from None

    def _request(
        self,
        act: str,
        kind: int,
        options: dict[str, object],
        layout: Layout,
        stage: Callable[[str, int], None],
        patience: int,
        gets_on: Callable[[], bool] | None = None,
    ) -> None:
        worker = self._workers.pop(act, None)
        if worker is None:
            raise Failed(Code.MOVE_FAILED, f"the {act} was not prepared")
        try:
            worker.request(kind, options, stage, timeout=patience + 10, gets_on=gets_on)
        except Failed as error:
            worker.close()
            reason = criu_rpc.first_error(layout.images / f"{act}.log")
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


class _Sending:
    """Memory on its way: whether more of it has gone out, and the end of it when the move is cancelled."""

    def __init__(self, stream: Stream, during: During) -> None:
        self._stream, self._during = stream, during
        self._sent = 0
        self.ended: WherryError | None = None
        """What `during` raised; the connection was cut then, and CRIU undoes what it did."""

    def uncork(self, _script: str, _pid: int) -> None:
        """At each stage of CRIU's."""
        self._stream.uncork()

    def gets_on(self) -> bool:
        """True when more has gone out since it was asked last."""
        before, self._sent = self._sent, self._stream.sent()
        try:
            if not self.ended:
                self._during(f"{format_size(self._sent)} sent")
        except WherryError as error:
            self.ended = error
            self._stream.cut()
        return self._sent > before


def _settle(place: Place) -> None:
    """The limits of a node that runs, which were lifted while it was frozen or not yet there."""
    group = Cgroup(place.cgroup)
    if group.pids():
        group.gather(_CPU)
        group.limit(place.cpus, place.node.memory)
        group.weight(place.cpus)
        group.weigh_parent()


def _in_flight(pids: list[int]) -> bool:
    """True when a TCP connection of the node waits to be accepted, or is being opened from outside."""
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
    """True for a process that an MPI launcher numbered: Open MPI's or MPICH's (PMI) variable is in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")) for entry in environment)


def _cpu_time(pid: int) -> int:
    """Nanoseconds on a CPU (proc(5), schedstat); 0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _end_receivers(directory: Path) -> None:
    """Ends what a killed daemon left there to receive, so that CRIU gives up now, and not when all has been sent."""
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
