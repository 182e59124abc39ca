"""The source's half of a container's move on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.units import format_size
from wherry.fabric.cgroup import Cgroup
from wherry.node.container import progress_bounds, thread_attributes, timers
from wherry.node.container.background import BackgroundTask, Repeated
from wherry.node.container.connections_in_flight import has_connections_in_flight
from wherry.node.container.criu.engine import CPU, CriuDump
from wherry.node.container.fd_identity import held_files, require_own_sockets
from wherry.node.container.file_locks import FileLocks, warm_up_locks
from wherry.node.container.host import Channel, Comparison, Handover, Look, Offers, Survey
from wherry.node.container.integrity import SumComparison
from wherry.node.container.mounts import MS_NOSUID, Layout, mount, unmount_below
from wherry.node.container.movable import require_movable
from wherry.node.container.pager import PageSender
from wherry.node.container.priority import RaisedPriority
from wherry.node.container.processes import tracer_of
from wherry.node.container.progress_bounds import Activity, Bound, MoveBounds, Sign, work_of
from wherry.node.container.streams import RateLimit, Sender
from wherry.node.container.tcp_repair import end_repair
from wherry.node.container.warm_connections import Underlay, WarmConnections
from wherry.node.protocol import Placement

_FREEZE_RETRIES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""Pauses in seconds between attempts to freeze: CRIU cannot dump a connection that is still in an accept queue."""


_WARM = 0.004
"""Seconds after which what is warm is used again, so that it stays so."""


class LocalDeparture:
    """One move away from this machine. `remove` removes the placement."""

    def __init__(
        self, underlay: Underlay, place: Placement, layout: Layout, remove: Callable[[], None], paged: bool = False
    ) -> None:
        self._underlay, self._place, self._layout, self._remove = underlay, place, layout, remove
        self._paged = paged
        self._memory: PageSender | None = None
        self._group = Cgroup(place.cgroup)
        self._locks = FileLocks(place.node.name, place.cgroup, layout.private)
        self._priority = RaisedPriority()
        self._activity = Activity()
        self._limit, self._bounds = RateLimit(None), MoveBounds(place.node.memory)
        self._connections: WarmConnections | None = None
        """None for a half made anew after a crash."""
        self._senders: dict[Channel, Sender] = {}
        self._engine: CriuDump | None = None
        self._comparison: SumComparison | None = None
        self._tree: BackgroundTask[None] | None = None
        self._survey: BackgroundTask[Survey] | None = None
        self._released = False
        self._warm: Repeated | None = None
        self._last = ExitStack()
        """The share of the rate that the pager's last pass has while it sends."""
        self._sent = 0
        """Bytes that the pager had sent at the end of the last pass."""

    def prepare(self, rate: float | None) -> None:
        self._require_own_sockets()  # before the node is frozen in vain
        has_connections_in_flight(self._place.netns)  # raises when it cannot be told
        require_movable(self._group.pids())
        self._locks.require_carriable()
        self._priority.raise_it()
        self._limit, self._bounds = RateLimit(rate), MoveBounds(self._place.node.memory, rate)
        mount("wherry", self._layout.images, "tmpfs", MS_NOSUID, "mode=0700")
        self._engine = CriuDump(self._place, self._layout, self._underlay.netns, self._limit, self._paged)

    def connect(self, offers: Offers) -> None:
        if self._connections is None:
            self._connections = WarmConnections(self._underlay)
        self._connections.begin(offers, self._limit)

    def begin_pass(self, number: int) -> None:
        engine, connections = self._engine, self._connections
        if engine is None or connections is None:
            raise _not_prepared()
        pages = [] if self._paged else [Channel.PAGES]
        for channel in (*pages, Channel.IMAGES, *([] if number else [Channel.TREE])):
            if before := self._senders.pop(channel, None):
                before.close()
            self._senders[channel] = Sender(channel, connections.take(channel))
        engine.begin_images(number)
        if self._paged:
            engine.begin_paged()
            self._begin_memory(connections.take(Channel.MEMORY), engine.hidden)
        else:
            engine.begin_pass(self._senders[Channel.PAGES])
        if self._comparison:
            self._comparison.close()
        comparison = self._comparison = SumComparison(
            connections.take(Channel.SUMS), engine.images, self._layout.private, self._group.freezer_procs_file()
        )
        signs = [sender.traffic() for sender in self._senders.values()]
        if self._memory:
            signs.append(self._memory.stream.traffic())
        self._activity.watch(*signs, work_of(lambda: [comparison.pid]))

    def pre_dump(self, look: Look) -> int | None:
        if self._memory is None:
            self._prepared_engine().pre_dump(look)
            return None
        with self._limit.sending(self._memory.stream):
            return self._memory.round(self._sending("a round", look, frozen=False))

    def warm_up(self) -> None:
        self._cool_down()
        self._warm = Repeated(warm_up_locks, _WARM)

    def freeze(self) -> Handover:
        group = self._group
        group.prefer(True)
        group.limit(None, self._place.node.memory)
        for pause in _FREEZE_RETRIES:
            group.freeze()
            if not has_connections_in_flight(self._place.netns) and not self._locks.obstacle():
                break
            group.thaw()
            time.sleep(pause)
        else:
            group.freeze()
            if obstacle := self._locks.obstacle():
                raise obstacle
        self._require_own_sockets()
        return self._locks.take()

    def dump(self, look: Look) -> float | None:
        engine, memory = self._prepared_engine(), self._memory
        self._tree = BackgroundTask(lambda: self._send(Channel.TREE, look))
        try:
            if memory is None:
                return engine.dump(self._locks.external, look)
            self._last.enter_context(self._limit.sending(memory.stream))
            memory.begin_last(self._sending("the last pass", look))
            engine.dump_paged(self._locks.external, look)
            return None
        except BaseException:  # it is the error to report, and the frozen node does not wait for its tree
            self._cut()
            raise

    def send(self, look: Look) -> None:
        tree = self._tree
        if tree is None:
            raise _not_prepared()
        try:
            self._send(Channel.IMAGES, look)
            if self._memory:
                self._memory.end_last(self._sending("the last pass", look))
                self._last.close()
            tree.result()
        except BaseException:
            self._cut()
            raise
        self._survey = BackgroundTask(self._surveyed)
        self._cool_down()

    def sent(self) -> int:
        ended = {channel: sender for channel, sender in self._senders.items() if sender.ended}
        sent = sum(sender.sent() for sender in ended.values())
        if self._memory:
            before, self._sent = self._sent, self._memory.stream.sent()
            sent += self._sent - before
        for channel, sender in ended.items():
            sender.close()
            del self._senders[channel]
        return sent

    def idle(self) -> float:
        return self._activity.idle()

    def compare(self, look: Look) -> Comparison:
        comparison, survey = self._comparison, self._survey
        if comparison is None or survey is None:
            raise _not_prepared()

        def bound(*signs: Sign) -> Bound:
            return self._bounds.of_step("the comparison", *signs, cancelled=lambda: look(""))

        sent_again = comparison.result(bound)
        return Comparison(survey.result(), sent_again)

    def release(self) -> None:
        self._released = True
        self._locks.close()
        if self._connections is not None:
            self._group.kill_all()  # does not wait: freeing a large memory takes the kernel a while
        else:  # a half made anew: the source may not be frozen, and could fork
            self._group.kill()
        self._locks.await_gone()

    def abort(self) -> None:
        self._cool_down()
        self._last.close()
        self._locks.close()
        if self._engine:
            self._engine.close()

    def resume(self) -> None:
        self._await_engine()
        end_repair(self._group.pids())
        self._group.thaw()
        restore_limits(self._place)

    def close(self) -> None:
        self.abort()
        if self._survey:
            self._survey.wait()
        if self._comparison:
            self._comparison.close()
            self._comparison = None
        if self._memory:
            self._memory.close()
            self._memory = None
        while self._senders:
            self._senders.popitem()[1].close()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        self._priority.reset()
        unmount_below(self._layout.images)
        if self._released or not self._group.pids():
            self._remove()

    def _cool_down(self) -> None:
        if self._warm:
            self._warm.stop()
            self._warm = None

    def _begin_memory(self, end: socket.socket, hidden: Path) -> None:
        memory = self._memory = PageSender(end, self._group.freezer_procs_file(), hidden)
        memory.await_ready(self._bounds.of_step("tracking the node's writes", memory.work()))

    def _sending(self, what: str, look: Look, frozen: bool = True) -> Bound:
        """The bound of a pass of the pager."""
        memory = self._memory
        if memory is None:
            raise _not_prepared()
        stream, seen = memory.stream, lambda: look(f"{format_size(memory.stream.sent())} sent")
        return self._bounds.of_sending(what, stream.round_trip(), stream.traffic(), memory.work(), seen, frozen=frozen)

    def _prepared_engine(self) -> CriuDump:
        if self._engine is None:
            raise _not_prepared()
        return self._engine

    def _send(self, channel: Channel, look: Look) -> None:
        sender = self._senders[channel]
        directory = self._layout.private if channel == Channel.TREE else self._prepared_engine().images

        def bound(*signs: Sign) -> Bound:
            return self._bounds.of_sending(f"the {channel}", sender.round_trip(), *signs, lambda: look(""))

        with self._limit.sending(sender):
            sender.send_tree(directory, bound)

    def _cut(self) -> None:
        """Ends what is being sent, and waits for it."""
        for sender in self._senders.values():
            sender.cut()
        if self._tree:
            self._tree.wait()

    def _surveyed(self) -> Survey:
        pids = self._group.pids()
        files = held_files(pids) if self._place.owner.uid != 0 else ()
        return Survey(files, self._locks.held(), thread_attributes.survey(pids), timers.survey(pids))

    def _require_own_sockets(self) -> None:
        """Checked for unprivileged users only: root gains nothing by a name of its own."""
        if self._place.owner.uid != 0:
            require_own_sockets(self._place.netns, self._layout.private)

    def _await_engine(self) -> None:
        """Waits for a dump that outlived a killed daemon: CRIU still traces the processes and freezes them again. A
        tracer inside the node is a debugger."""
        deadline = time.monotonic() + progress_bounds.total(self._place.node.memory)
        while time.monotonic() < deadline:
            pids = self._group.pids()
            if all(tracer_of(pid) in (0, *pids) for pid in pids):
                return
            time.sleep(0.01)


def restore_limits(place: Placement) -> None:
    """Restores the limits of a running node, which were lifted during the move."""
    group = Cgroup(place.cgroup)
    if group.pids():
        group.gather(CPU)
        group.limit(place.quota, place.node.memory)
        group.weight(place.cpus)
        group.weigh_parent()


def _not_prepared() -> Failed:
    return Failed(Code.MOVE_FAILED, "the move was not prepared", "", "report this")
