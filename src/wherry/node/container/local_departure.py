"""The source's half of a container's move on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pydantic import SecretBytes

from wherry.base.errors import Code, Failed
from wherry.base.units import format_size
from wherry.fabric.cgroup import Cgroup
from wherry.node.container import clocks, progress_bounds, socket_options, thread_attributes, timers
from wherry.node.container.background import WARMING_INTERVAL, BackgroundTask, CacheWarmer
from wherry.node.container.connections_in_flight import has_connections_in_flight, in_flight
from wherry.node.container.criu.engine import CriuDump
from wherry.node.container.deaths import first_problem
from wherry.node.container.fd_identity import held_files, require_own_sockets
from wherry.node.container.file_locks import FileLocks
from wherry.node.container.file_tree import TreeSender
from wherry.node.container.forked_memory import require_memory
from wherry.node.container.host import HOSTS_OWN, Channel, Comparison, FrozenState, Offers, PassedFds, StepMonitor
from wherry.node.container.host_memory import HostMemory
from wherry.node.container.integrity import SumComparison
from wherry.node.container.limits import restore_limits
from wherry.node.container.lock_table import warm_proc_locks
from wherry.node.container.loopback import Loopback
from wherry.node.container.mounts import MS_NOSUID, Layout, mount, unmount_below
from wherry.node.container.movable import process_name, require_movable, require_no_amx
from wherry.node.container.pager import PageSender
from wherry.node.container.priority import RaisedPriority
from wherry.node.container.processes import engine_traces, first_process, is_dying, passing_state, process_state
from wherry.node.container.progress_bounds import Activity, MoveTimeouts, ProgressProbe, StallTimeout, work_of
from wherry.node.container.rate_limit import RateLimit
from wherry.node.container.shared_files import flush
from wherry.node.container.stale_mounts import let_go
from wherry.node.container.streams import Sender
from wherry.node.container.tcp_repair import end_repair
from wherry.node.container.tracking import Tracking
from wherry.node.container.unread_state import UnreadState
from wherry.node.container.warm_connections import Underlay, WarmConnections
from wherry.node.container.write_sample import tracked
from wherry.node.protocol import Placement

_PAUSES = 0.001, 0.016
"""Seconds between two attempts to freeze: the first pause, which then doubles, and the longest one."""
_STANDS, _STANDS_AT_LAST = 0.25, 5.0
"""Seconds for an attempt, and for the last one."""
_TRIES_FOR, _TRIES = 2.0, 20
"""Seconds and attempts after which one is the last: a machine without a free processor has few in the time."""


class LocalDeparture:
    """One move away from this machine. `remove` removes the placement; `tracking` is how the pager finds writes;
    `shared` is the host's memory that the node's ranks share with others.

    With post-copy the pager lives in `pager_group` from the last pass on, and a committed node has a mark in its
    directory: `retired`. Invariant: a node with the mark is never thawed, only killed.
    """

    def __init__(
        self,
        underlay: Underlay,
        placement: Placement,
        layout: Layout,
        pager_group: Cgroup,
        remove: Callable[[], None],
        paged: bool = False,
        tracking: Tracking | None = None,
        shared: HostMemory | None = None,
    ) -> None:
        self._shared = shared
        self._underlay, self._placement, self._layout, self._remove = underlay, placement, layout, remove
        self._pager_group, self._paged, self._tracking = pager_group, paged, tracking
        self._post_copy = False
        self._memory: PageSender | None = None
        self._key, self._compressed = SecretBytes(b""), False
        """The key of the memory; whether it is compressed, and where tunnels carry them, files and images."""
        self._group, self._unread = Cgroup(placement.cgroup), UnreadState(layout.own)
        self._locks = FileLocks(placement.node.name, placement.cgroup, layout.own)
        self._loopback = Loopback(placement.netns)
        self._priority, self._activity = RaisedPriority(), Activity()
        self._limit, self._timeouts = RateLimit(None), MoveTimeouts(placement.node.memory)
        self._connections: WarmConnections | None = None
        """None for a half made anew after a crash."""
        self._senders: dict[Channel, Sender] = {}
        self._engine: CriuDump | None = None
        self._comparison: SumComparison | None = None
        self._files: list[TreeSender] = []
        """Of the files in memory, and those on the node's disk."""
        self._trees: list[BackgroundTask[int]] = []
        """Send the node's files in the last pass."""
        self._frozen_state: BackgroundTask[FrozenState] | None = None
        self._first: int | None = None
        """The node's first process."""
        self._ahead, self._two_kernels = HOSTS_OWN, False
        """How far the node's clocks are ahead of this host's; whether it goes to another kernel."""
        self._released = False
        self._cache_warmer: CacheWarmer | None = None
        self._last = ExitStack()
        """The share of the rate that the pager's last pass has while it sends."""
        self._sent = 0
        """Bytes that had been sent at the end of the last round."""
        self._tracked = ExitStack()
        """The lock of the node's tracking, while the pager has it."""

    def prepare(
        self, rate: float | None, compressed: bool = False, spare: float = 0.0, two_kernels: bool = False
    ) -> None:
        self._compressed, self._two_kernels = compressed, two_kernels
        self._first = first_process(self._placement)
        self._ahead = clocks.of_process(self._first) if self._first else HOSTS_OWN
        self._require_own_sockets()  # before the node is frozen in vain
        has_connections_in_flight(self._placement.netns)  # raises when the check fails
        require_movable(pids := self._group.pids(), self._layout.own)
        let_go(self._first, self._layout)
        if self._paged:
            require_memory(self._group, pids, self._placement.node.memory)
        self._locks.require_carriable()
        if removed := self._locks.removed(self._underlay.fabric.leaves_machine):
            raise removed
        self._loopback.start()  # raises when the kernel could not stop it either
        self._priority.raise_it()
        self._limit, self._timeouts = RateLimit(rate, spare), MoveTimeouts(self._placement.node.memory, rate)
        mount("wherry", self._layout.images, "tmpfs", MS_NOSUID, "mode=0700")
        self._engine = CriuDump(self._placement, self._layout, self._underlay.netns, self._limit, self._paged)

    def connect(self, offers: Offers) -> None:
        self._connections = WarmConnections(self._underlay, self._compressed)
        if Channel.MEMORY in offers:
            self._key = offers[Channel.MEMORY].key
        self._connections.begin(offers, self._limit)

    def begin(self) -> None:
        engine, connections = self._engine, self._connections
        if engine is None or connections is None:
            raise _not_prepared()
        for channel in (Channel.IMAGES,) if self._paged else (Channel.PAGES, Channel.IMAGES):
            self._senders[channel] = Sender(channel, connections.take(channel))
        engine.images.mkdir()
        self._senders[Channel.IMAGES].start_tree(engine.images)
        self._begin_files(connections)
        if self._paged:
            engine.begin_paged()
            self._begin_memory(connections.take_all(Channel.MEMORY), engine.skip_list)
        else:
            engine.begin_unpaged(self._senders[Channel.PAGES])
        comparison = self._comparison = SumComparison(
            connections.take(Channel.SUMS), engine.images, self._group.freezer_procs_file()
        )
        probes = [sender.traffic() for sender in (*(each.stream for each in self._files), *self._senders.values())]
        if self._memory:
            probes.append(self._memory.stream.traffic())
        self._activity.watch(*probes, work_of(lambda: [comparison.pid]))

    def round(self, monitor: StepMonitor) -> int | None:
        if self._memory is None:
            raise _not_prepared()
        trees = self._begin_sending(monitor, frozen=False)
        try:
            with self._limit.sending(self._memory.stream):
                dirty = self._memory.round(self._sending("a round", monitor, frozen=False))
        except BaseException:
            self._abort_transfers(trees)
            raise
        left = sum([tree.result() for tree in trees])
        return None if dirty is None else dirty + left

    def throttle(self, share: float) -> None:
        self._group.limit_cpus(share * self._placement.quota, exact=True)

    def prepare_freeze(self) -> None:
        self._locks.close()
        self._thaw()  # it is frozen when it has not settled
        self._stop_cache_warmer()
        require_no_amx(pids := self._group.pids())
        self._flush()
        if self._paged:
            self._prepared_engine().flags.copy(pids)
        self._unread.learn(pids)
        self._cache_warmer = CacheWarmer(warm_proc_locks, WARMING_INTERVAL)

    def _flush(self) -> None:
        """Another machine shall see what the node wrote to shared files: first before the freeze, the rest in it."""
        if self._underlay.fabric.leaves_machine:
            try:
                flush(self._group.pids())
            except OSError as error:
                what = f"data that node {self._placement.node.name} wrote to shared storage is not on it"
                raise Failed(Code.MOVE_FAILED, what, str(error), "see to the storage, then repeat the move") from None

    def freeze(self, post_copy: bool = False) -> PassedFds:
        group, self._post_copy = self._group, post_copy
        group.prefer(True)
        group.limit(None, self._placement.node.memory)
        until, (pause, longest) = time.monotonic() + _TRIES_FOR, _PAUSES
        tries, last = 0, False
        while obstacle := self._obstacle(_STANDS_AT_LAST if last else _STANDS):
            if last:
                raise obstacle
            group.thaw()
            time.sleep(pause)
            pause, tries = min(2 * pause, longest), tries + 1
            last = tries >= _TRIES and time.monotonic() >= until
        self._loopback.stop()
        self._require_own_sockets()
        passed = self._locks.pass_on()
        if passed.descriptors and self._underlay.fabric.leaves_machine:
            what = f"node {self._placement.node.name} has a lock on a file that other hosts see, too"
            why = "no lock can be handed over to another machine"
            raise Failed(Code.MOVE_FAILED, what, why, "repeat the move when its programs have released the lock")
        if post_copy and (kept := self._locks.kept_by_both()):
            raise kept
        self._flush()
        return passed

    def settled(self) -> bool:
        return not has_connections_in_flight(self._placement.netns)

    def _obstacle(self, timeout: float) -> Failed | None:
        """Freezes the node; why it must run on for a moment before it can be moved, None when it need not."""
        for process in self._group.pids():
            if (state := process_state(process)) and state.is_stopped:
                return self._passing(f"{process_name(process)} is stopped (SIGSTOP, Ctrl-Z)")
        try:
            self._group.freeze(timeout)
        except Failed as error:  # with cgroup v1, a process that calls exec waits for its threads, which are frozen
            return error
        if why := next(filter(None, map(passing_state, self._group.pids())), ""):
            return self._passing(why)
        if (under_way := in_flight(self._placement.netns)).connections:
            return self._passing("a connection is being made that its program has not accepted")
        if why := self._unread.obstacle(self._group.pids(), under_way.unread):
            return self._passing(why)
        if self._shared:
            self._shared.take_home(self._layout.private)
            if (pid := self._shared.user_of(self._group.pids())) is not None:
                return self._passing(f"process {pid} sends or receives a message in its host's memory")
        return self._locks.obstacle()

    def _passing(self, what: str) -> Failed:
        return Failed(Code.MOVE_FAILED, what, f"this lasted for {_TRIES_FOR:g} s", "the same command again")

    def dump(self, monitor: StepMonitor) -> float | None:
        engine, memory = self._prepared_engine(), self._memory
        self._locks.write_mapped(engine.images)
        self._trees = self._begin_sending(monitor)
        try:
            if memory is None:
                return engine.dump(self._locks.external, monitor)
            self._last.enter_context(self._limit.sending(memory.stream))
            memory.begin_last(self._sending("the last pass", monitor), self._pager_group if self._post_copy else None)
            engine.dump_paged(self._locks.external, monitor)
            return None
        except BaseException:  # it is the error to report, and the frozen node does not wait for its tree
            self._abort_transfers(self._trees)
            raise

    def send(self, monitor: StepMonitor) -> None:
        if not self._trees:
            raise _not_prepared()
        try:
            self._send(Channel.IMAGES, monitor)
            if self._memory:
                self._memory.end_last(self._sending("the last pass", monitor))
                if not self._post_copy:
                    self._last.close()
            for tree in self._trees:
                tree.result()
        except BaseException:
            self._abort_transfers(self._trees)
            raise
        self._frozen_state = BackgroundTask(self._read_frozen_state)
        self._stop_cache_warmer()

    def sent(self) -> int:
        streams = [each.stream for each in (self._memory, *self._files) if each]
        before, self._sent = self._sent, sum(each.sent() for each in (*streams, *self._senders.values()))
        return self._sent - before

    def problem(self) -> str:
        if self._first is not None and is_dying(self._first):
            return "the node's first process was killed"
        programs = self._memory, *self._files, self._engine, self._comparison, *self._senders.values()
        return first_problem(self._connections, *programs)

    def idle(self) -> float:
        return self._activity.idle()

    def compare(self, monitor: StepMonitor) -> Comparison:
        comparison, state = self._comparison, self._frozen_state
        if comparison is None or state is None:
            raise _not_prepared()

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            return self._timeouts.of_step("the comparison", *probes, cancelled=lambda: monitor(""))

        sent_again = comparison.result(make_timeout)
        return Comparison(state.result(), sent_again)

    def release(self) -> None:
        live = self._connections is not None
        if (live and not self._post_copy) or not self._pager_group.pids():
            self._kill()
            return
        self._locks.close()
        self._retired.touch()
        self._last.close()
        if self._memory:
            if self._limit.rate is not None:
                self._memory.stream.limit_first(self._limit.rate)
            self._memory.stream.close()  # all of them: the destination shall see when the program ends

    def send_rest(self) -> None:
        if self._memory:
            self._memory.thawed()

    def discard(self) -> None:
        if self._retired.exists():
            self._kill()
            self._pager_group.remove()
            self._retired.unlink()

    @property
    def _retired(self) -> Path:
        return self._layout.directory / "retired"

    def _kill(self) -> None:
        self._released = True
        self._locks.close()
        if self._connections is not None:
            self._group.kill_all()  # does not wait: freeing a large memory takes the kernel a while
        else:  # a half made anew: the source may not be frozen, and could fork
            self._group.kill()
        self._locks.await_gone()

    def abort(self) -> None:
        self._let_go()
        if self._pager_group.exists():
            self._pager_group.remove()

    def _let_go(self) -> None:
        self._stop_cache_warmer()
        self._last.close()
        self._locks.close()
        if self._engine:
            self._engine.close()

    def resume(self) -> None:
        if self._retired.exists():
            what = f"node {self._placement.node.name} at {self._placement.host} is retired"
            raise Failed(Code.MOVE_FAILED, what, "its copy may have run", "report this")
        self._await_engine()
        end_repair(self._group.pids())
        if self._shared:
            self._shared.finish(self._layout.private)
        self._thaw()
        restore_limits(self._placement)

    def _thaw(self) -> None:
        self._loopback.start()
        self._group.thaw()

    def close(self) -> None:
        self._let_go()
        self._loopback.close()
        if self._frozen_state:
            self._frozen_state.wait()
        if self._comparison:
            self._comparison.close()
            self._comparison = None
        if self._memory and not self._retired.exists():
            self._memory.close()
            self._memory = None
            self._pager_group.remove()
        self._tracked.close()
        while self._files:
            self._files.pop().close()
        while self._senders:
            self._senders.popitem()[1].close()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        self._priority.reset()
        unmount_below(self._layout.images)
        if self._released or not self._group.pids():
            self._remove()

    def _stop_cache_warmer(self) -> None:
        if self._cache_warmer:
            self._cache_warmer.stop()
            self._cache_warmer = None

    def _begin_memory(self, ends: list[socket.socket], skip_list: Path) -> None:
        self._tracked.enter_context(tracked(self._group))
        tasks, key = self._group.freezer_procs_file(), self._key.get_secret_value()
        memory = self._memory = PageSender(ends, tasks, skip_list, self._tracking, key, self._compressed)
        memory.await_ready(self._timeouts.of_step("tracking the node's writes", memory.work()))

    def _begin_files(self, connections: WarmConnections) -> None:
        self._files.append(TreeSender(connections.take(Channel.TREE), self._layout.private))
        if disk := self._layout.disk:
            self._files.append(TreeSender(connections.take(Channel.DISK), disk.files, disk.size, on_disk=True))
        for files in self._files:
            files.await_ready(self._timeouts.of_step("the program that sends the files", files.work()))

    def _begin_sending(self, monitor: StepMonitor, frozen: bool = True) -> list[BackgroundTask[int]]:
        """Begins to send the files that have changed."""
        return [BackgroundTask(partial(self._send_files, files, monitor, frozen)) for files in self._files]

    def _send_files(self, files: TreeSender, monitor: StepMonitor, frozen: bool) -> int:
        """Sends the files that have changed, for the last time when it is `frozen`; the bytes that may have changed
        since."""
        stream, seen, disk = files.stream, lambda: monitor(""), self._layout.disk
        timeout = self._timeouts.more(files.size).of_sending(
            "the files", stream.round_trip(), stream.traffic(), files.work(), seen, frozen=frozen
        )
        with self._limit.sending(stream):
            if not frozen:
                return files.round(timeout)
            return files.last(timeout, bool(files.size and disk and disk.may_change_unseen(self._group.pids())))

    def _sending(self, what: str, monitor: StepMonitor, frozen: bool = True) -> StallTimeout:
        """The timeout of a pass of the pager."""
        memory = self._memory
        if memory is None:
            raise _not_prepared()
        stream, seen = memory.stream, lambda: monitor(f"{format_size(memory.stream.sent())} sent")
        return self._timeouts.of_sending(
            what, stream.round_trip(), stream.traffic(), memory.work(), seen, frozen=frozen
        )

    def _prepared_engine(self) -> CriuDump:
        if self._engine is None:
            raise _not_prepared()
        return self._engine

    def _send(self, channel: Channel, monitor: StepMonitor) -> None:
        sender = self._senders[channel]

        def make_timeout(*probes: ProgressProbe) -> StallTimeout:
            return self._timeouts.of_sending(f"the {channel}", sender.round_trip(), *probes, lambda: monitor(""))

        with self._limit.sending(sender):
            sender.send_tree(make_timeout)

    def _abort_transfers(self, trees: list[BackgroundTask[int]]) -> None:
        """Ends the sending programs, and waits for them."""
        for sender in self._senders.values():
            sender.cut()
        if self._memory:  # of which the destination sees no end when only the program has ended
            self._memory.stream.cut()
        for files in self._files:
            files.cut()
        for tree in trees:
            tree.wait()

    def _read_frozen_state(self) -> FrozenState:
        if self._paged:
            self._prepared_engine().flags.require_unchanged()
        pids = self._group.pids()
        files = held_files(pids, self._two_kernels) if self._placement.owner.uid != 0 else ()
        threads, timed = thread_attributes.read_all(pids), timers.read_all(pids, self._ahead)
        options = socket_options.read_all(pids, self._prepared_engine().options)
        return FrozenState(files, self._locks.held(), threads, timed, options, self._placement.pin, self._two_kernels)

    def _require_own_sockets(self) -> None:
        """Checked for unprivileged users only: root gains nothing by a name of its own."""
        if self._placement.owner.uid != 0:
            require_own_sockets(self._placement.netns, self._layout.own)

    def _await_engine(self) -> None:
        """Waits for a dump that outlived a killed daemon: CRIU still traces the processes and freezes them again."""
        deadline = time.monotonic() + progress_bounds.total(self._placement.node.memory)
        while engine_traces(self._group.pids()) and time.monotonic() < deadline:
            time.sleep(0.01)


def _not_prepared() -> Failed:
    return Failed(Code.MOVE_FAILED, "the move was not prepared", "", "report this")
