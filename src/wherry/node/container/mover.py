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

`MoveTransport` sends, `CriuEngine` dumps and restores, `IntegrityCheck` compares; here are the steps and their order.
Memory is sent to a tmpfs of the destination, never through a disk. The driver's `stop` removes everything that a
placement leaves on a host, so `roll_back`, `release` and `thaw` also work for a new mover after a crash.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from wherry.base.errors import Code, Failed
from wherry.base.progress import Progress, quiet
from wherry.fabric.cgroup import Cgroup, warm_up_attach
from wherry.fabric.protocol import Fabric
from wherry.model.records import Round
from wherry.node.container import progress_bounds
from wherry.node.container.criu import soft_dirty
from wherry.node.container.criu.engine import CPU, CriuEngine
from wherry.node.container.fd_identity import require_own_sockets, require_same
from wherry.node.container.file_locks import FileLocks
from wherry.node.container.integrity import IntegrityCheck
from wherry.node.container.mounts import MS_NOSUID, Layout, mount, unmount_below
from wherry.node.container.movable import require_movable
from wherry.node.container.processes import cpu_time, has_connections_in_flight, is_rank, tracer_of
from wherry.node.container.progress_bounds import never_cancelled
from wherry.node.container.streams import BackgroundTask, receive_tree
from wherry.node.container.tcp_repair import end_repair
from wherry.node.container.thread_attributes import AttributesOfNode
from wherry.node.container.timers import TimersOfNode, keep_clocks
from wherry.node.container.transport import PASS_CONNECTIONS, MoveTransport, end_receivers
from wherry.node.container.warm_connections import BACK
from wherry.node.protocol import Placement, Transferred, Usage

_NICE = -15
"""Nice value of the moving thread, inherited by all that it starts, so that other load prolongs the downtime less."""
_FIRST_RUN_TIMEOUT = 0.2
"""Seconds to wait for a rank to run after the thaw: each one does, if only to sleep again, unless it ended."""
_FREEZE_RETRIES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""Pauses in seconds between attempts to freeze: CRIU cannot dump a connection that is still in an accept queue."""


class PlacementDriver(Protocol):
    """What a move needs of the driver of containers."""

    def layout(self, place: Placement) -> Layout:
        """The directories of a placement."""

    def engine_group(self, place: Placement) -> Cgroup:
        """The cgroup of a restore into a placement."""

    def stop(self, place: Placement) -> None:
        """Removes a placement."""

    def usage(self, place: Placement) -> Usage:
        """What the node uses."""


class ContainerMover:
    """Moves one container between two placements."""

    def __init__(self, driver: PlacementDriver, fabric: Fabric, source: Placement, destination: Placement) -> None:
        self._driver, self._fabric = driver, fabric
        self._source, self._destination = source, destination
        self._from, self._to = driver.layout(source), driver.layout(destination)
        self._locks = FileLocks(source.node.name, source.cgroup, self._from.private)
        self._transport = MoveTransport(fabric, source, destination)
        self._engine = CriuEngine(
            fabric, self._transport, (source, self._from), (destination, self._to), driver.engine_group(destination)
        )
        self._verification: IntegrityCheck | None = None
        self._released = False
        self._frozen_ranks: dict[int, int] = {}
        """CPU time in nanoseconds, by PID, of each restored rank before the thaw."""
        self._original_priority: tuple[int, int] | None = None
        """Thread id and original nice value of the thread that runs the move."""

    def predict(self) -> tuple[int, float]:
        usage = self._driver.usage(self._source)
        return usage.memory + _tree_bytes(self._from.private), 0.05 + 0.004 * usage.processes

    def can_round(self) -> bool:
        return soft_dirty.tracked()

    def limit_rate(self, rate: float | None) -> None:
        self._transport.set_rate(rate)

    def prepare(self) -> None:
        self._require_own_sockets()  # before the node is frozen in vain
        require_movable(Cgroup(self._source.cgroup).pids())
        self._locks.require_carriable()
        self._raise_priority()
        node = self._destination.node
        self._transport.connect("tree", *PASS_CONNECTIONS)
        self._driver.stop(self._destination)
        self._to.make(node.memory, self._destination.netns)
        group = Cgroup(self._destination.cgroup)
        group.create()
        group.limit(None, node.memory)
        group.weight(self._destination.cpus)
        group.prefer(True)
        for layout in (self._from, self._to):
            mount("wherry", layout.images, "tmpfs", MS_NOSUID, "mode=0700")
        self._transport.open("tree", receive_tree(self._to.private), stdin=True)
        self._engine.prepare()
        self._engine.begin_pass(0)
        self._begin_verification()

    def round(self, number: int, progress: Progress = quiet) -> Round:
        began = time.monotonic()
        self._transport.connect(*PASS_CONNECTIONS)  # for the next pass
        self._engine.pre_dump(progress)
        sent = self._transport.finish("pages", frozen=False)
        self._transport.streams.pop("images").close()
        self._engine.next_pass()
        self._begin_verification()
        return Round(number=number, bytes=sent, seconds=time.monotonic() - began)

    def freeze(self, post_copy: bool = False) -> None:
        group = Cgroup(self._source.cgroup)
        group.prefer(True)
        group.limit(None, self._source.node.memory)
        for pause in _FREEZE_RETRIES:
            group.freeze()
            if not has_connections_in_flight(group.pids()) and not self._locks.obstacle():
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
        with self._cancellable(progress):
            carried = self._locks.take()
            beside = [BackgroundTask(lambda: self._transport.send("tree", self._from.private))]
            if carried:
                beside.append(BackgroundTask(lambda: self._engine.inherit(carried)))
            try:
                self._engine.dump(self._locks.external, progress)
                beside.append(BackgroundTask(warm_up_attach))
                self._transport.send("images", self._engine.images(self._from))
            except BaseException:  # it is the error to report, and the frozen node does not wait for its tree
                self._transport.streams["tree"].cut()
                for task in beside:
                    task.wait()
                raise
            for task in beside:
                task.result()
            sent = sum(self._transport.finish(what) for what in ("pages", "images", "tree"))
        return Transferred(bytes=sent, frozen=self._engine.dump_seconds())

    def restore(self, progress: Progress = quiet) -> float | None:
        with self._cancellable(progress):
            verification, bound = self._verification, self._transport.bound
            if verification is None:
                raise Failed(Code.MOVE_FAILED, "the restore was not prepared")
            verification.list(lambda *signs: bound("the checksums of the received data", *signs))
            inherited = self._locks.inherit(self._engine.images(self._to))
            keep_clocks(self._engine.images(self._to))
            originals, group = Cgroup(self._source.cgroup).pids(), Cgroup(self._destination.cgroup)
            timers, attributes = TimersOfNode(originals), AttributesOfNode(originals)
            seconds = self._engine.restore(inherited)
            verification.require_same(group.freezer_procs_file(), lambda *signs: bound("the comparison", *signs))
            if self._destination.owner.uid != 0:
                require_same(Cgroup(self._source.cgroup).pids(), group.pids(), self._to.private)
            self._locks.require_kept(group.pids())
            attributes.carry_to(group.pids())
            timers.carry_to(group.pids())
            self._frozen_ranks = {pid: cpu_time(pid) for pid in group.pids() if is_rank(pid)}
        return seconds

    @contextmanager
    def _cancellable(self, progress: Progress) -> Iterator[None]:
        """Meanwhile `progress` is called at each look of a bound, and its exception ends the step."""
        self._transport.cancelled = lambda: progress("")
        try:
            yield
        finally:
            self._transport.cancelled = never_cancelled

    def switched(self) -> bool:
        return False

    def release(self) -> None:
        """Does not wait until the processes are gone: freeing a large memory takes the kernel a while."""
        self._released = True
        source = Cgroup(self._source.cgroup)
        if self._transport.is_open:
            source.kill_all()
        else:  # a new mover after a crash: the source may not be frozen, and could fork
            source.kill()

    def thaw(self) -> None:
        self._locks.await_gone()
        Cgroup(self._destination.cgroup).thaw()

    def await_first_run(self) -> float | None:
        began = time.monotonic()
        while self._frozen_ranks and time.monotonic() - began < _FIRST_RUN_TIMEOUT:
            if any(cpu_time(pid) > before for pid, before in self._frozen_ranks.items()):
                return time.monotonic() - began
            time.sleep(0.0005)
        return None

    def roll_back(self) -> None:
        """Thaws the source as soon as nothing of the destination can run; the rest is removed afterwards, so that it
        does not prolong the freeze. Descriptors are closed first: the node's locks are its own again when it runs, and
        if a process of the destination does not end, the next attempt may be another mover's."""
        self._locks.close()
        if not self._transport.is_open:
            end_receivers(self._to.directory)
        self._engine.close()
        for group in (self._driver.engine_group(self._destination), Cgroup(self._destination.cgroup)):
            group.kill()
        self._await_engine()
        source = Cgroup(self._source.cgroup)
        end_repair(source.pids())
        source.thaw()
        _restore_limits(self._source)
        self.close()
        self._driver.stop(self._destination)

    def close(self) -> None:
        self._engine.close()
        self._end_verification()
        self._locks.close()
        self._transport.close()
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

    def _begin_verification(self) -> None:
        self._end_verification()
        self._verification = IntegrityCheck(
            self._transport.connection(BACK),
            (self._engine.images(self._from), self._from.private),
            (self._engine.images(self._to), self._to.private),
            Cgroup(self._source.cgroup).freezer_procs_file(),
        )

    def _end_verification(self) -> None:
        if self._verification is not None:
            self._verification.close()
            self._verification = None

    def _await_engine(self) -> None:
        """Waits for a dump that outlived a killed daemon: CRIU still traces the processes and freezes them again. A
        tracer inside the node is a debugger."""
        group = Cgroup(self._source.cgroup)
        deadline = time.monotonic() + progress_bounds.total(self._source.node.memory)
        while time.monotonic() < deadline:
            pids = group.pids()
            if all(tracer_of(pid) in (0, *pids) for pid in pids):
                return
            time.sleep(0.01)


def _restore_limits(place: Placement) -> None:
    """Restores the limits of a running node, which were lifted during the move."""
    group = Cgroup(place.cgroup)
    if group.pids():
        group.gather(CPU)
        group.limit(place.cpus, place.node.memory)
        group.weight(place.cpus)
        group.weigh_parent()


def _tree_bytes(directory: Path) -> int:
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue
    return total
