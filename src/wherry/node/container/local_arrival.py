"""The destination's half of a container's move on this machine.

Memory is received into a tmpfs, never through a disk.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from pydantic import SecretBytes

from wherry.base.errors import Code, Failed
from wherry.fabric import cpuset
from wherry.fabric.cgroup import Cgroup, warm_cgroup_attach
from wherry.model.records import Fetched
from wherry.node.container import socket_options, thread_attributes, timers
from wherry.node.container.background import WARMING_INTERVAL, CacheWarmer
from wherry.node.container.criu.engine import CriuRestore
from wherry.node.container.deaths import first_problem
from wherry.node.container.fd_identity import require_same
from wherry.node.container.file_locks import inherit_fd_option, require_kept
from wherry.node.container.file_tree import TreeReceiver
from wherry.node.container.host import HOSTS_OWN, Channel, ClocksAhead, FrozenState, Offers, PassedFds, StepMonitor
from wherry.node.container.integrity import Digest
from wherry.node.container.limits import restore_limits
from wherry.node.container.memory_shortage import Shortage, memory_shortage
from wherry.node.container.mounts import MS_NOSUID, Layout, mount, unmount_below
from wherry.node.container.pager import PageReceiver, fetch_timeouts
from wherry.node.container.priority import RaisedPriority
from wherry.node.container.processes import cpu_time, is_dying, is_rank, namespace_pids
from wherry.node.container.progress_bounds import Activity, MoveTimeouts, ProgressProbe, StallTimeout, total, work_of
from wherry.node.container.streams import Receiver, end_receivers, receive_tree
from wherry.node.container.warm_connections import OfferedConnections, Underlay
from wherry.node.protocol import Placement

_TIMES = 10
"""Factor of the time allowed for sending all memory, after which a node that still lacks some is given up."""
_ROOM = 2
"""Factor of the space that the node's files may take while they arrive: a pass over files that change may find some
twice."""
_HANG_MARGIN = 30.0
"""Seconds after the receiver's own deadline at which it is found to hang."""
_FIRST_RUN_TIMEOUT = 0.2
"""Seconds to wait for a rank to run after the thaw: each one does, if only to sleep again, unless it ended."""


class LocalArrival:
    """One move to this machine. `groups` are cgroups for CRIU and for the receivers of memory and files; `remove`
    removes the placement, `join` gives it the objects that the host has for several. When `sealed`, only data that was
    encrypted at the source is taken."""

    def __init__(
        self,
        underlay: Underlay,
        placement: Placement,
        layout: Layout,
        groups: tuple[Cgroup, Cgroup],
        remove: Callable[[], None],
        paged: bool = False,
        sealed: bool = False,
        join: Callable[[], None] | None = None,
    ) -> None:
        self._join = join
        self._underlay, self._placement, self._layout, self._remove = underlay, placement, layout, remove
        self._own_group, self._pager_group = groups
        self._group, self._paged, self._sealed = Cgroup(placement.cgroup), paged, sealed
        self._key = SecretBytes(b"")
        self._memory: PageReceiver | None = None
        self._rounds, self._thawed = 0, False
        self._ahead = HOSTS_OWN
        self._fetch_timeouts: tuple[float, float] | None = None
        self._priority = RaisedPriority()
        self._activity = Activity()
        self._timeouts = MoveTimeouts(placement.node.memory)
        self._connections: OfferedConnections | None = None
        """None for a half made anew after a crash."""
        self._receivers: dict[Channel, Receiver] = {}
        self._files: list[TreeReceiver] = []
        """Of the files in memory, and those on the node's disk."""
        self._engine: CriuRestore | None = None
        self._sums: Digest | None = None
        self._passed = PassedFds()
        self._cache_warmer: CacheWarmer | None = None
        self._first: int | None = None
        """The node's first process, once it was restored."""
        self._frozen_ranks: dict[int, int] = {}
        """CPU time in nanoseconds, by PID, of each restored rank before the thaw."""

    def offer(self, *channels: Channel, streams: int = 1) -> Offers:
        if self._connections is None:
            self._connections = OfferedConnections(self._underlay, self._sealed)
        offers = self._connections.offer(*channels, streams=streams)
        if Channel.MEMORY in offers:
            self._key = offers[Channel.MEMORY].key
        return offers

    def prepare(self, rate: float | None, deadline: float | None = None, ahead: ClocksAhead = HOSTS_OWN) -> None:
        self._ahead = ahead
        node, group = self._placement.node, self._group
        self._fetch_timeouts = None if deadline is None else (deadline, deadline + _TIMES * total(node.memory, rate))
        self._priority.raise_it()
        self._timeouts = MoveTimeouts(node.memory, rate)
        self._remove()
        if self._join:
            self._join()
        self._layout.make(node.memory, self._placement.netns)
        self._layout.multiply_room(_ROOM)
        group.create()
        cpuset.create(self._placement.cgroup)
        group.limit(None, node.memory)
        group.weight(self._placement.cpus)
        group.prefer(True)
        mount("wherry", self._layout.images, "tmpfs", MS_NOSUID, "mode=0700")
        self._engine = CriuRestore(self._placement, self._layout, self._underlay.netns, self._own_group, self._paged)
        self._engine.prepare(ahead)

    def begin(self) -> None:
        engine, connections = self._engine, self._connections
        if engine is None or connections is None:
            raise _not_prepared()
        engine.images.mkdir()
        self._begin_files(connections, self._layout)
        if self._paged:
            self._begin_memory(connections.take_all(Channel.MEMORY))
            engine.begin_paged()
        else:
            self._receive(Channel.PAGES, engine.page_server(), stdin=False)
        self._receive(Channel.IMAGES, receive_tree(engine.images))
        self._sums = Digest(connections.take(Channel.SUMS), engine.images)
        pids = [
            *(files.pid for files in self._files),
            *(receiver.pid for receiver in self._receivers.values()),
        ]  # not the sums' program, which polls
        if self._memory:
            pids.append(self._memory.pid)
        self._activity.watch(work_of(lambda: pids))

    def receive(self, monitor: StepMonitor, last: bool) -> None:
        if not last:
            self._rounds += 1
            return
        self._await_files(monitor)
        for channel in (Channel.PAGES, Channel.IMAGES):
            if channel in self._receivers:
                self._await(channel, monitor)
        if self._memory:
            work, seen = self._memory.work(), lambda: monitor("")
            timeout = self._timeouts.of_sending("the memory", self._memory.round_trip, work, seen)
            self._memory.await_last(self._rounds, timeout)

    def idle(self) -> float:
        return self._activity.idle()

    def problem(self) -> str:
        programs = self._memory, *self._files, self._engine, self._sums, *self._receivers.values()
        if why := first_problem(self._connections, *programs):
            return why
        return "the restored first process was killed" if self._first is not None and is_dying(self._first) else ""

    def shortage(self) -> Shortage | None:
        return memory_shortage(self._placement, self._pager_group)

    def take_passed(self, passed: PassedFds) -> None:
        if self._engine is None:
            raise _not_prepared()
        if passed != PassedFds():
            self._passed = passed
            self._engine.start_worker(passed.descriptors)
        self._stop_cache_warmer()
        self._cache_warmer = CacheWarmer(warm_cgroup_attach, WARMING_INTERVAL)  # for the restore, which follows

    def restore(self, monitor: StepMonitor) -> float | None:
        engine, sums = self._engine, self._sums
        if engine is None or sums is None:
            raise _not_prepared()

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            what = "the checksums of the received data"
            return self._timeouts.of_step(what, *probes, lambda: monitor(""))

        sums.await_complete(make_timeout)
        shared = [bind.inside for bind in self._layout.binds if bind.writable]
        keys = inherit_fd_option(engine.images, self._passed, shared)
        timers.keep_clocks(engine.images)
        try:
            seconds = engine.restore(keys, lambda: monitor(""))
        finally:
            self._stop_cache_warmer()
        if self._memory:
            self._memory.await_restored(self._step("the restore of the memory", monitor, self._memory))
            self._memory.fill_objects(self._step("filling shared memory", monitor, self._memory))
        return seconds

    def patch(self, what: str, monitor: StepMonitor) -> None:
        if self._sums is None:
            raise _not_prepared()

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            return self._timeouts.of_step("the comparison", *probes, cancelled=lambda: monitor(""))

        self._sums.patch(self._group.freezer_procs_file(), what, make_timeout)

    def apply_state(self, state: FrozenState) -> None:
        pids = self._group.pids()
        if state.files:
            require_same(state.files, pids, self._layout.own, state.two_kernels)
        require_kept(pids, state.locks)
        placement = self._placement
        if placement.pin:
            cpuset.pin_processes(placement.cgroup, placement.pin, self._group.pids)
        thread_attributes.carry_to(pids, thread_attributes.translated(state.threads, state.pin, placement.pin))
        timers.carry_to(pids, state.timers, self._ahead)
        socket_options.carry_to(pids, state.options)
        self._first = next((pid for pid in pids if namespace_pids(pid)[-1] == 1), None)
        self._frozen_ranks = {pid: cpu_time(pid) for pid in pids if is_rank(pid)}

    def thaw(self) -> None:
        self._group.thaw()
        self._thawed = self._paged
        if self._memory:
            self._memory.thawed()

    def await_first_run(self) -> float | None:
        began = time.monotonic()
        while self._frozen_ranks and time.monotonic() - began < _FIRST_RUN_TIMEOUT:
            if any(cpu_time(pid) > before for pid, before in self._frozen_ranks.items()):
                return time.monotonic() - began
            time.sleep(0.0005)
        return None

    def fill(self) -> Fetched | None:
        if not self._thawed and (not self._group.pids() or self._group.frozen()):
            return None
        memory, pager = self._memory, self._pager_group
        timeouts = fetch_timeouts(pager.pids())
        working = work_of(pager.pids)
        timeout = self._timeouts.of_step("filling the node's memory", working)
        if timeouts:  # the receiver itself looks whether pages come; here only whether it hangs
            timeout = StallTimeout(
                "fetching the node's memory", timeouts[0] + _HANG_MARGIN, timeouts[1] + _HANG_MARGIN, working
            )
        try:
            while pager.pids():
                timeout.check()
                time.sleep(0.02 if timeouts else 0.002)
        except Failed:
            if timeouts:
                self._group.kill()  # before who keeps it from running with holes in its memory
            raise
        if not self._group.pids():
            what = f"node {self._placement.node.name} ended before it had all its memory"
            why = memory.problem() if memory else "a program that fetched it or filled it in had ended"
            raise Failed(Code.MOVE_FAILED, what, why, "wherry up FILE")
        return memory.fetched() if memory else None

    def kill(self) -> None:
        self._stop_cache_warmer()
        if self._connections is None:
            end_receivers(self._layout.directory)
        if self._engine:
            self._engine.close()
        for group in (self._own_group, self._group, self._pager_group):  # the pager after its users
            group.kill()

    def close(self) -> None:
        """Closes all else, however the filling ends. Invariant: all that keeps the node from running with holes in its
        memory is left."""
        self._stop_cache_warmer()
        if self._engine:
            self._engine.close()
        with ExitStack() as ended:
            ended.callback(unmount_below, self._layout.images)
            ended.callback(self._priority.reset)
            ended.callback(self._close_connections)
            ended.callback(restore_limits, self._placement)
            self._end_memory()

    def _close_connections(self) -> None:
        if self._sums:
            self._sums.close()
            self._sums = None
        while self._files:
            self._files.pop().close()
        while self._receivers:
            self._receivers.popitem()[1].close()
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    def _stop_cache_warmer(self) -> None:
        if self._cache_warmer:
            self._cache_warmer.stop()
            self._cache_warmer = None

    def _begin_files(self, connections: OfferedConnections, layout: Layout) -> None:
        end, group = connections.take(Channel.TREE), self._pager_group
        self._files.append(TreeReceiver(end, layout.private, layout.arriving, group))
        if disk := layout.disk:
            self._files.append(
                TreeReceiver(connections.take(Channel.DISK), disk.files, disk.arriving, group, disk.size)
            )

    def _begin_memory(self, ends: list[socket.socket]) -> None:
        path, tasks = self._layout.images / "lazy-pages.socket", self._group.freezer_procs_file()
        group, netns, key = self._pager_group, self._underlay.netns, self._key.get_secret_value()
        memory = self._memory = PageReceiver(ends, path, tasks, group, netns, key, self._fetch_timeouts)
        memory.await_ready(self._timeouts.of_step("the receiver of the memory", memory.work()))

    def _end_memory(self) -> None:
        """Waits until a node that runs here has all its memory: then no program has to be there for it."""
        try:
            if self._group.pids():
                self.fill()
        finally:
            if not self._group.pids() or not self._pager_group.pids():
                memory, self._memory = self._memory, None
                if memory:
                    memory.close()
                self._pager_group.remove()

    def _step(self, what: str, monitor: StepMonitor, memory: PageReceiver) -> StallTimeout:
        return self._timeouts.of_step(what, memory.work(), cancelled=lambda: monitor(""))

    def _receive(self, channel: Channel, argv: list[str], stdin: bool = True) -> None:
        """Starts the receiver of a connection."""
        assert self._connections is not None
        self._receivers[channel] = Receiver(channel, self._connections.take(channel), argv, stdin)

    def _await_files(self, monitor: StepMonitor) -> None:
        if not self._files:
            raise _not_prepared()
        for files in self._files:
            timeouts = self._timeouts.more(files.size)
            files.await_last(timeouts.of_sending("the files", files.round_trip, files.work(), lambda: monitor("")))
        self._layout.multiply_room(1 / _ROOM)

    def _await(self, channel: Channel, monitor: StepMonitor) -> None:
        receiver = self._receivers[channel]

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            what, seen = f"the {channel}", lambda: monitor("")
            return self._timeouts.of_sending(what, receiver.round_trip, *probes, seen)

        receiver.await_all(make_timeout)


def _not_prepared() -> Failed:
    return Failed(Code.MOVE_FAILED, "the move was not prepared", "", "report this")
