"""The steps of a container's move, with the pager where both hosts have it (docs/design/0020-pager.md).

    source (Departure)                       destination (Arrival)
    ------------------                       ---------------------
    prepare   connections; CRIU begins       tmpfs, root, cgroup; pager and tar wait, CRIU begins
    round n   pager ------------ pages --->  pager             (the node runs)
              files that changed -- tree ->  private           (beside it)
    freeze    freezer cgroup
    transfer  pager ------------ pages --->  pager: every page is here
              CRIU dump          (beside it)
              files that changed -- tree ->  private           (beside it)
              tar of images --- metadata --> images
    restore                                  checksums of the received data
              compared     <----- sums ---   CRIU restore; frozen before the first instruction
              differences  ---- memory -->   corrected, if they are few
    release   kill                           |
    thaw                                     freezer cgroup thawed
    complete                                 pager: every page is in its process

With post-copy `transfer` sends which pages are left instead of their contents, `release` only retires the node, the
pager sends the requested pages from then on and after the thaw all else, and `complete` kills it.

Without the pager there are no rounds: CRIU's dump sends all memory while the node is frozen.

Only the order of the steps is here; all work at a host is behind `wherry.node.container.host`. Whatever a placement
leaves is found by its name, so `roll_back`, `release` and `thaw` also work for a new mover after a crash.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.progress import Progress, quiet
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Carriage, Fetched, Round
from wherry.model.throttle import next_share
from wherry.node.container.background import run_concurrently
from wherry.node.container.carriage import connections
from wherry.node.container.clocks import agreed
from wherry.node.container.host import FILES, PAGED, UNPAGED, Channel, ContainerHosts, PassedFds, StepMonitor
from wherry.node.protocol import Measured, Placement, ProgramEnded, Transferred

_IDLE_AFTER = 0.1
"""Seconds since its last progress after which a host counts as making none; looks are made every 50 ms."""
_DEADLINE = 60.0
"""Seconds without a page after which a node is given up whose memory comes after the thaw."""
_LAST_WORDS = 0.3
"""Seconds that a program which broke a connection has to report why."""
log = logging.getLogger("wherry.verify")


class ContainerMover:
    """Moves one container between two placements; it is slowed down (`slowed`) until its rounds converge. Refused when
    it shall be moved by post-copy, and cannot."""

    def __init__(
        self,
        hosts: ContainerHosts,
        source: Placement,
        destination: Placement,
        parameters: MigrationParameters | None = None,
    ) -> None:
        parameters = self._parameters = parameters or MigrationParameters()
        self._slowed = parameters.mode == "auto-converge"
        self._rounds: list[Round] = []
        self._share = 1.0
        """The share of its CPU time that the node has."""
        self._source, self._destination = source, destination
        self._from, self._to = hosts.of(source.host), hosts.of(destination.host)
        obstacle = self._from.pager_obstacle() or self._to.pager_obstacle()
        self._paged = not obstacle
        if obstacle and parameters.may_post_copy:
            what = f"{source.node.name} cannot be moved with --mode {parameters.mode}"
            raise Refused(Code.UNSUPPORTED, what, obstacle, "leave --mode out; wherry doctor shows what is missing")
        self._deadline = (parameters.deadline or _DEADLINE) if parameters.may_post_copy else None
        self._post_copy = False
        self._departure = self._from.departure(source, self._paged)
        self._arrival = self._to.arrival(destination, self._paged)
        self._rate: float | None = None
        self._spare = 0.0
        self._carriage: Carriage | None = None
        self._encrypted = False
        self._passed = PassedFds()

    def predict(self, seconds: float = 0.0) -> Measured:
        measured = self._from.measure(self._source, seconds if self._paged else 0.0)
        return measured.model_copy(update={"engine": measured.engine or "pager" if self._paged else "criu"})

    def can_round(self) -> bool:
        return self._paged

    def limit_rate(self, rate: float | None, spare: float = 0.0) -> None:
        self._rate, self._spare = rate, spare

    def prepare(self) -> None:
        compressed = self._paged and self._parameters.compresses(self._rate)
        clocks = agreed(lambda: self._from.clocks(self._source), lambda: self._to.clocks(self._destination))
        # refuses before anything is made
        self._departure.prepare(self._rate, compressed, self._spare, clocks.two_kernels)
        files = FILES if self._source.node.disk else FILES[:1]
        if self._paged:
            streams = connections(self._parameters.connections, self._rate)
            offers = self._arrival.offer(*files, *PAGED, streams=streams)
            self._encrypted = bool(offers[Channel.MEMORY].key)
            self._carriage = Carriage(connections=streams, compressed=compressed, encrypted=self._encrypted)
        else:
            offers = self._arrival.offer(*files, *UNPAGED)
            self._encrypted = bool(offers[Channel.TREE].key)
        self._departure.connect(offers)
        self._arrival.prepare(self._rate, self._deadline, clocks.ahead)
        self._departure.begin()
        self._arrival.begin()

    def round(self, number: int, progress: Progress = quiet) -> Round:
        self._slow_down()
        began = time.monotonic()
        with self._explained():
            dirty = self._departure.round(_monitor_of(progress, self._arrival.idle))
        self._arrival.receive(_monitor_of(quiet, self._departure.idle), last=False)
        sent = self._departure.sent()
        seconds, share = time.monotonic() - began, self._share if self._slowed else None
        done = Round(number=number, bytes=sent, seconds=seconds, dirty=dirty, share=share)
        self._rounds.append(done)
        return done

    def freeze(self, post_copy: bool = False) -> float:
        self._departure.prepare_freeze()
        began = time.monotonic()
        self._post_copy = post_copy
        self._passed = self._departure.freeze(post_copy)
        return time.monotonic() - began

    def settled(self) -> bool:
        return self._departure.settled()

    def transfer(self, progress: Progress = quiet) -> Transferred:
        monitor, passed = _monitor_of(progress, self._arrival.idle), self._passed
        with run_concurrently(lambda: self._arrival.take_passed(passed)):
            frozen = self._departure.dump(monitor)
            with (
                self._explained(),
                run_concurrently(lambda: self._arrival.receive(_monitor_of(progress, self._departure.idle), last=True)),
            ):
                self._departure.send(monitor)
        return Transferred(bytes=self._departure.sent(), frozen=frozen, carriage=self._carriage)

    def restore(self, progress: Progress = quiet) -> float | None:
        monitor = _monitor_of(progress, self._departure.idle)
        with self._explained():
            seconds = self._arrival.restore(monitor)
        comparison = self._departure.compare(monitor)
        if comparison.sent_again:
            self._arrival.patch(comparison.sent_again, monitor)
            log.warning("sent again: %s", comparison.sent_again)
        self._arrival.apply_state(comparison.state)
        return seconds

    def problem(self) -> str:
        halves = ((self._source.host, self._departure), (self._destination.host, self._arrival))
        found = next((f"at {host}: {why}" for host, half in halves if (why := half.problem())), "")
        shortage = self._arrival.shortage() if found else None
        return shortage.text if shortage else found

    def switched(self) -> bool:
        return False

    def release(self) -> None:
        self._departure.release()

    def thaw(self) -> None:
        self._arrival.thaw()
        if self._post_copy:
            self._departure.send_rest()

    def await_first_run(self) -> float | None:
        return self._arrival.await_first_run()

    def complete(self) -> Fetched | None:
        fetched = self._arrival.fill()
        self._departure.discard()
        return fetched

    def roll_back(self) -> None:
        """Resumes the source as soon as nothing of the destination can run; the rest is removed afterwards, so that it
        does not prolong the freeze. The handed over descriptions are let go first: the node's locks are its own again
        when it runs, and if a process of the destination does not end, the next attempt may be another mover's. A
        destination that is silent is not waited for: before the commit it never gets the command to thaw, so its copy
        is frozen."""
        self._departure.abort()
        try:
            self._arrival.kill()
        except LostContact as silent:
            self._departure.resume()
            self._departure.close()  # else its programs would still track the node at the next move
            name, there = self._source.node.name, self._destination.host
            what = f"{name} runs on {self._source.host}, and the remains of its move at {there} are still there"
            raise LostContact(Code.UNREACHABLE, what, str(silent), silent.next) from None
        self._departure.resume()
        self.close()
        self._to.stop(self._destination)

    def close(self) -> None:
        try:
            self._arrival.close()
        finally:
            self._departure.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """The source sees only that its connection breaks when a program of the destination has ended."""
        try:
            yield
        except Failed as error:
            if error.code != Code.CANCELLED and (shortage := self._arrival.shortage()):
                raise ProgramEnded(Code.MOVE_FAILED, shortage.text, "", shortage.remedy) from error
            if error.code != Code.CANCELLED and not isinstance(error, ProgramEnded) and (why := self._why_of_arrival()):
                error.why = f"{error.why}; at {self._destination.host}: {why}"
            raise

    def _why_of_arrival(self) -> str:
        """The problem at the destination. The program that encrypts a connection ends it first, and a moment later
        itself, with the reason."""
        deadline = time.monotonic() + (_LAST_WORDS if self._encrypted else 0.0)
        while not (why := self._arrival.problem()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return why

    def _slow_down(self) -> None:
        """Leaves the node as much CPU time as it gets in the next round."""
        if self._slowed and (share := next_share(self._rounds)) < self._share:
            self._departure.throttle(share)
            self._share = share


def _monitor_of(progress: Progress, idle: Callable[[], float]) -> StepMonitor:
    """Reports progress, which also cancels the move, and asks the other host for its own."""

    def monitor(text: str) -> bool:
        progress(text)
        return idle() < _IDLE_AFTER

    return monitor
