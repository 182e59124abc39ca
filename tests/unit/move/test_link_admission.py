"""A link's budget for moves: the rate of each, which move waits for which, and that each has its turn."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fakeworld import World, fabric_spec

from wherry.base.errors import Code, Failed, Refused
from wherry.model.records import Move, Phase
from wherry.model.spec.fabric import FabricSpec
from wherry.move.forecast import forecast
from wherry.move.link_admission import LinkAdmission, LinkPath, link_path
from wherry.node.protocol import Measured
from wherry.schedule.routes import QUIET_SHARE, SHARE


def chain(**links: object) -> FabricSpec:
    """Sites a - b - c in a line, a host at each."""
    between = {"ab": ["a", "b"], "cb": ["c", "b"]}
    return FabricSpec.model_validate(
        {
            "kind": "fabric",
            "version": 1,
            "name": "chain",
            "sites": [{"name": site} for site in "abc"],
            "hosts": [{"name": f"{site}1", "site": site, "cores": 1, "memory": "1GiB"} for site in "abc"],
            "links": [{"between": between[name], **(links.get(name) or {})} for name in between],  # type: ignore[dict-item]
        }
    )


FAR = chain(ab={"bandwidth": "1Gbit/s", "reverse": {"bandwidth": "100Mbit/s"}}, cb={"bandwidth": "200Mbit/s"})


def test_the_narrowest_link_of_the_way_in_its_direction_sets_the_rate() -> None:
    full = link_path(FAR, "a1", "b1")
    assert (full.budgets, full.rate) == ({("a", "b"): SHARE * 1e9}, SHARE * 1e9)
    assert full.rate + full.spare == pytest.approx(QUIET_SHARE * 1e9), "while nobody else sends"
    assert link_path(FAR, "a1", "b1", 2 * 10**8).spare == 0, "a rate that was asked for is kept"
    assert link_path(FAR, "b1", "a1").rate == SHARE * 1e8
    over_two = link_path(FAR, "a1", "c1")
    assert set(over_two.budgets) == {("a", "b"), ("b", "c")} and over_two.rate == SHARE * 2e8
    assert link_path(FAR, "a1", "c1", 10**6).rate == 1e6


def test_what_declares_no_bandwidth_has_no_budget() -> None:
    free = chain(ab={"latency": "10ms"})
    assert link_path(free, "a1", "c1") == LinkPath() == link_path(FAR, "a1", "a1")
    assert link_path(free, "a1", "c1", 10**9) == LinkPath({}, 1e9)


def test_more_than_a_link_has_is_refused() -> None:
    with pytest.raises(Refused, match=r"from site b to site c.*200 Mbit/s") as refused:
        link_path(FAR, "a1", "c1", 2 * 10**8 + 1)
    assert (refused.value.code, refused.value.next) == (Code.USAGE, "give a smaller --bandwidth")
    assert link_path(FAR, "a1", "c1", 2 * 10**8).rate == 2e8, "all of it may be asked for"


class Queue:
    """Moves that ask one after another, each in a thread; `sending` has the moves with a turn."""

    def __init__(self) -> None:
        self.admission = LinkAdmission()
        self.sending: list[str] = []
        self._changed = threading.Condition()
        self._ends: dict[str, threading.Event] = {}
        self._cancelled: set[str] = set()
        self._threads: dict[str, threading.Thread] = {}

    def ask(self, name: str, mine: LinkPath) -> None:
        """Returns when the move has its turn or waits for it."""
        asked = threading.Event()
        self._ends[name] = threading.Event()

        def waiting() -> None:
            asked.set()
            if name in self._cancelled:
                raise Failed(Code.CANCELLED, name)

        def run() -> None:
            try:
                with self.admission.admitted(mine, waiting):
                    self._note(name, True)
                    asked.set()
                    self._ends[name].wait()
                    self._note(name, False)
            except Failed:
                return

        self._threads[name] = threading.Thread(target=run)
        self._threads[name].start()
        assert asked.wait(20)

    def end(self, name: str) -> None:
        self._cancelled.add(name)
        self._ends[name].set()
        self._threads.pop(name).join(20)

    def becomes(self, *names: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.sending == list(names), 20)

    def _note(self, name: str, sends: bool) -> None:
        with self._changed:
            self.sending = [*self.sending, name] if sends else [other for other in self.sending if other != name]
            self._changed.notify_all()


def test_moves_at_full_speed_take_turns_in_their_order() -> None:
    queue, full = Queue(), LinkPath({("a", "b"): 100.0}, 100.0)
    for name in ("first", "second", "third"):
        queue.ask(name, full)
    assert queue.becomes("first")
    queue.ask("elsewhere", LinkPath({("b", "a"): 100.0}, 100.0))
    queue.ask("local", LinkPath())
    assert queue.becomes("first", "elsewhere", "local")
    queue.end("second")
    queue.end("first")
    assert queue.becomes("elsewhere", "local", "third")
    for name in ("elsewhere", "local", "third"):
        queue.end(name)
    assert queue.becomes() and not queue.admission._queue


def test_slow_moves_go_together_and_nobody_overtakes() -> None:
    queue, slow, full = Queue(), LinkPath({("a", "b"): 100.0}, 50.0), LinkPath({("a", "b"): 100.0}, 100.0)
    queue.ask("one", slow)
    queue.ask("two", slow)
    assert queue.becomes("one", "two")
    queue.ask("full", full)
    queue.ask("three", slow)
    queue.end("one")
    assert queue.becomes("two"), "a later move waits behind the move that needs all"
    queue.end("two")
    assert queue.becomes("full")
    queue.end("full")
    assert queue.becomes("three")
    queue.end("three")


def test_nodes_that_cross_a_link_are_never_frozen_at_the_same_time(tmp_path: Path) -> None:
    spec = fabric_spec()
    spec = spec.model_copy(update={"links": (spec.effective_links()[0].model_copy(update={"bandwidth": 10**8}),)})
    world = World(tmp_path, spec)
    world.make(hosts=["a1"])
    frozen, most = set[str](), [0]
    watched = world.driver.put

    def put(place, copy) -> None:  # type: ignore[no-untyped-def]
        watched(place, copy)
        if place.host == "a1":
            (frozen.add if copy == "frozen" else frozen.discard)(place.node.name)
        elif copy == "frozen":
            frozen.discard(place.node.name)  # restored: the link is free again
        most.append(len(frozen))

    world.driver.put = put  # type: ignore[method-assign]
    moves = [threading.Thread(target=world.moves.run, args=(f"hello-{n}", "b1")) for n in range(4)]
    for move in moves:
        move.start()
    for move in moves:
        move.join(60)
    assert max(most) == 1
    assert set(world.driver.rates.values()) == {SHARE * 1e8}
    assert {node.host for node in world.store.nodes()} == {"b1"}
    assert all("link wait" in move.phases for move in world.store.moves())


def measured(size: int, overhead: float) -> Measured:
    """A node whose writes were not sampled."""
    return Measured(bytes=size, overhead=overhead)


def test_a_prediction_counts_the_link() -> None:
    def made(size: int) -> Move:
        down = 0.05 + size / 10e6
        return Move(
            id="m", node="n", cluster="c", source="a", destination="b", phase=Phase.DONE, created=0, bytes=size,
            downtime=down, total=down + 0.2,
        )  # fmt: skip

    assert forecast(measured(2**28, 0.05), False, [], 80e6).downtime == pytest.approx(0.05 + 2**28 / 10e6)
    assert forecast(measured(2**28, 0.05), False, [made(2**20)], 80e6).downtime == pytest.approx(0.05 + 2**28 / 10e6)
