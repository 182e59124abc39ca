"""The steps of a container's move, with the pager where both hosts have it (docs/design/0020-pager.md).

    source (Departure)                       destination (Arrival)
    ------------------                       ---------------------
    prepare   connections; CRIU begins       tmpfs, root, cgroup; pager and tar wait, CRIU begins
    round n   pager ------------ pages --->  pager             (the node runs)
    freeze    freezer cgroup
    transfer  pager ------------ pages --->  pager: every page is here
              CRIU dump          (beside it)
              tar of private ----- tree -->  private
              tar of images --- metadata --> images
    restore                                  checksums of the received data
              compared     <----- sums ---   CRIU restore; frozen before the first instruction
              differences  ---- memory -->   corrected, if they are few
    release   kill                           |
    thaw                                     freezer cgroup thawed
    close                                    pager: every page is in its process

Without the pager CRIU sends the memory: in rounds of `pre-dump`, each with images of its own, where the kernel has
soft-dirty bits, and what is left, or all of it, in its dump.

Only the order of the steps is here; what is done at a host is behind `wherry.node.container.host`. Whatever a
placement leaves is found by its name, so `roll_back`, `release` and `thaw` also work for a new mover after a crash.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wherry.base.errors import Code, Failed
from wherry.base.progress import Progress, quiet
from wherry.model.records import Round
from wherry.node.container.background import beside
from wherry.node.container.host import EACH_PASS, PAGED, Channel, ContainerHosts, Handover, Look
from wherry.node.protocol import Placement, Transferred

_LOOK = 0.1
"""Seconds since its last progress after which a host is said to make none; looks are made every 50 ms."""
log = logging.getLogger("wherry.verify")


class ContainerMover:
    """Moves one container between two placements."""

    def __init__(self, hosts: ContainerHosts, source: Placement, destination: Placement) -> None:
        self._source, self._destination = source, destination
        self._from, self._to = hosts.of(source.host), hosts.of(destination.host)
        self._paged = not (self._from.pager_obstacle() or self._to.pager_obstacle())
        self._departure = self._from.departure(source, self._paged)
        self._arrival = self._to.arrival(destination, self._paged)
        self._rate: float | None = None
        self._handover = Handover()

    def predict(self) -> tuple[int, float]:
        return self._from.forecast(self._source)

    def can_round(self) -> bool:
        return self._paged or self._from.tracks_dirty_pages()

    def limit_rate(self, rate: float | None) -> None:
        self._rate = rate

    def prepare(self) -> None:
        self._departure.prepare(self._rate)  # refuses before anything is made
        self._departure.connect(self._arrival.offer(Channel.TREE, *(PAGED if self._paged else EACH_PASS)))
        self._arrival.prepare(self._rate)
        self._begin_pass(0)

    def round(self, number: int, progress: Progress = quiet) -> Round:
        began = time.monotonic()
        if not self._paged:
            self._departure.connect(self._arrival.offer(*EACH_PASS))  # for the next pass
        with self._explained():
            dirty = self._departure.pre_dump(_look(progress, self._arrival.idle))
        self._arrival.receive(_look(quiet, self._departure.idle), last=False)
        sent = self._departure.sent()
        if not self._paged:
            self._begin_pass(number)
        return Round(number=number, bytes=sent, seconds=time.monotonic() - began, dirty=dirty)

    def freeze(self, post_copy: bool = False) -> float:
        self._departure.warm_up()
        began = time.monotonic()
        self._handover = self._departure.freeze()
        return time.monotonic() - began

    def transfer(self, progress: Progress = quiet) -> Transferred:
        look, handover = _look(progress, self._arrival.idle), self._handover
        with beside(lambda: self._arrival.inherit(handover)):
            frozen = self._departure.dump(look)
            with (
                self._explained(),
                beside(lambda: self._arrival.receive(_look(progress, self._departure.idle), last=True)),
            ):
                self._departure.send(look)
        return Transferred(bytes=self._departure.sent(), frozen=frozen)

    def restore(self, progress: Progress = quiet) -> float | None:
        look = _look(progress, self._departure.idle)
        seconds = self._arrival.restore(look)
        comparison = self._departure.compare(look)
        if comparison.sent_again:
            self._arrival.patch(comparison.sent_again, look)
            log.warning("sent again: %s", comparison.sent_again)
        self._arrival.adopt(comparison.survey)
        return seconds

    def switched(self) -> bool:
        return False

    def release(self) -> None:
        self._departure.release()

    def thaw(self) -> None:
        self._arrival.thaw()

    def await_first_run(self) -> float | None:
        return self._arrival.await_first_run()

    def roll_back(self) -> None:
        """Resumes the source as soon as nothing of the destination can run; the rest is removed afterwards, so that it
        does not prolong the freeze. What was handed over is let go first: the node's locks are its own again when it
        runs, and if a process of the destination does not end, the next attempt may be another mover's."""
        self._departure.abort()
        self._arrival.kill()
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
            if error.code != Code.CANCELLED and (why := self._arrival.problem()):
                error.why = f"{error.why}; at {self._destination.host}: {why}"
            raise

    def _begin_pass(self, number: int) -> None:
        self._departure.begin_pass(number)
        self._arrival.begin_pass(number)


def _look(progress: Progress, idle: Callable[[], float]) -> Look:
    """Reports progress, which also cancels the move, and asks the other host for its own."""

    def look(text: str) -> bool:
        progress(text)
        return idle() < _LOOK

    return look
