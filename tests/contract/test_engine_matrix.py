"""Containers with programs of every kind are moved again and again, in every mode; each checks all that it has.

    programs (tests/objects)   active all the time (BUSY), at rest (test_objects: TIMERS, CARRIED)
    modes                      the pager; the pager at a low rate, so that rounds never gain; the pager as on a kernel
                               that does not track writes; over several connections, compressed and encrypted;
                               post-copy, also over several; CRIU alone
    moves                      within a site, to another site, back, and so on (ENGINE_MOVES); none; a move that is
                               given up at the end of a phase (GIVEN_UP), of each phase, and then one to its end

`make test-engine` does the whole. File locks that others try to take meanwhile are test_file_locks.py's, terminals
test_terminals.py's.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
from contract_names import ENGINE_MOVES, WHOLE_MATRIX
from engine_node import BUSY, HOSTS, TELLING, EngineNode, Mode, engine_node
from node_objects import compile_objects
from test_objects import CARRIED, LOST, TIMERS

from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import NodeDriver

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs")
_SEVERAL_LATER = MigrationParameters(mode="post-copy", connections=3, compress="on")
MODES = {
    "paged": ("container", Mode(rounds=2)),
    "slow": ("container", Mode(rounds=6, rate=400e6)),
    "post-copy": ("container", Mode(rounds=1, parameters=MigrationParameters(mode="post-copy"))),
    "comparison": ("comparison", Mode(rounds=2)),
    "several": ("sealed", Mode(rounds=2, parameters=MigrationParameters(connections=3, compress="on"))),
    "post-copy-several": ("sealed", Mode(rounds=1, parameters=_SEVERAL_LATER)),
    "unpaged": ("unpaged", Mode()),
}
IN_ALL_MODES = pytest.mark.parametrize(("nodes", "mode"), list(MODES.values()), ids=list(MODES), indirect=["nodes"])
GIVEN_UP = (("prepare", 0), ("round", 1), ("round", 2), ("freeze", 2), ("transfer", 2), ("restore", 2))
"""Phases at whose end a move is given up, which all are before its commit, and the rounds that it makes until then."""
_WRITER = Path(__file__).resolve().parents[2] / "native" / "tests" / "memory_writer.c"
_HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
_TIMERS_DUE = 5.6
"""Seconds after which the one-shot timers of TIMERS have expired."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """That of tests/objects, and memory_writer."""
    directory = tmp_path_factory.mktemp("engine")
    writer = directory / "memory_writer"
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-O2", "-pthread", str(_WRITER), "-o", str(writer)], check=True)
    return compile_objects(directory), writer


@pytest.fixture
def node(nodes: tuple[NodeDriver, Fabric], programs: tuple[Path, Path]) -> Iterator[EngineNode]:
    with engine_node(*nodes, *programs) as made:
        yield made


def move_about(node: EngineNode, mode: Mode, *busy: str) -> None:
    """Moves the node; after each move every activity continues and is right."""
    for host in islice(cycle([*HOSTS[1:], HOSTS[0]]), ENGINE_MOVES):
        node.aim(host)
        assert node.attempt(mode) == "" and node.host == host
        node.await_laps(*busy)


@IN_ALL_MODES
def test_activities_go_on_through_many_moves(node: EngineNode, mode: Mode) -> None:
    node.begin(*BUSY)
    move_about(node, mode, *BUSY)
    assert node.check(*BUSY) == {}


@pytest.mark.parametrize("nodes", ["container"], indirect=True)
def test_a_move_ends_no_wait(node: EngineNode) -> None:
    node.begin("busy_wait")
    move_about(node, Mode(rounds=1), "busy_wait")


@IN_ALL_MODES
def test_a_node_may_be_frozen_anew(node: EngineNode, mode: Mode) -> None:
    """As when a connection came before its port was unplugged: it runs for a moment first."""
    froze: list[float] = []

    def again(step: str, mover: ContainerMover) -> None:
        if step == "freeze":
            froze.append(mover.freeze())

    node.begin(*TELLING)
    assert node.attempt(mode, again) == "" and froze
    node.await_laps(*TELLING)


@IN_ALL_MODES
def test_a_connection_within_a_node_does_not_stall(node: EngineNode, mode: Mode) -> None:
    node.begin("busy_halves")
    move_about(node, mode, "busy_halves")


@pytest.mark.parametrize("nodes", ["container", "comparison", "unpaged"], indirect=True)
def test_objects_stay_what_they_are_through_many_moves(node: EngineNode) -> None:
    node.begin(*TIMERS, *CARRIED)
    move_about(node, Mode(rounds=1))
    assert node.check(*TIMERS, *CARRIED) == {}


def give_up(node: EngineNode, mode: Mode, phase: str) -> None:
    """A move that is rolled back at the end of a phase."""

    def fail(step: str, _mover: ContainerMover) -> None:
        if step == phase:
            raise Failed(Code.MOVE_FAILED, f"given up after {phase}")

    assert "given up" in node.attempt(mode, fail)


@pytest.mark.parametrize("nodes", ["container"], indirect=True)
@pytest.mark.parametrize("cases", [(*TIMERS, *CARRIED, *LOST), BUSY], ids=["objects", "activities"])
def test_objects_are_right_without_any_move(node: EngineNode, cases: tuple[str, ...]) -> None:
    """So the move causes each fault that they have after it."""
    node.begin(*cases)
    assert node.check(*cases) == {}


ALL_OF_THEM = [pytest.param(GIVEN_UP, 1, marks=pytest.mark.smoke), pytest.param(GIVEN_UP, 0)]
ONE_BY_ONE = [((phase,), moves) for phase in GIVEN_UP for moves in (0, 1)]


@pytest.mark.parametrize("nodes", ["container", *(["unpaged"] if WHOLE_MATRIX else [])], indirect=True)
@pytest.mark.parametrize(("phases", "moves"), [*ALL_OF_THEM, *(ONE_BY_ONE if WHOLE_MATRIX else [])])
def test_objects_are_right_when_a_move_is_given_up(
    node: EngineNode, phases: tuple[tuple[str, int], ...], moves: int
) -> None:
    """At the source, or after another move that is not given up."""
    cases = (*TIMERS, *CARRIED, *(() if moves else LOST))
    node.begin(*cases)
    for phase, rounds in phases:
        give_up(node, Mode(rounds), phase)
    assert not moves or node.attempt(Mode(rounds=1)) == ""
    assert node.check(*cases) == {}


@IN_ALL_MODES
def test_activities_go_on_when_moves_are_given_up(node: EngineNode, mode: Mode) -> None:
    node.begin(*BUSY)
    for phase, rounds in GIVEN_UP:
        give_up(node, replace(mode, rounds=rounds), phase)
        node.await_laps(*BUSY)
    assert node.attempt(mode) == ""
    node.await_laps(*BUSY)
    assert node.check(*BUSY) == {}


@pytest.mark.parametrize("nodes", ["container", *(["unpaged"] if WHOLE_MATRIX else [])], indirect=True)
def test_timers_that_expire_while_the_node_stands(node: EngineNode) -> None:
    began = time.monotonic()
    node.begin(*TIMERS)

    def wait(step: str, _mover: object) -> None:
        if step == "freeze":
            assert time.monotonic() < began + 5, "they have expired before"
            time.sleep(max(0.0, began + _TIMERS_DUE - time.monotonic()))

    assert node.attempt(Mode(rounds=1), wait) == ""
    assert node.check(*TIMERS) == {}


@contextmanager
def huge_pages(count: int) -> Iterator[None]:
    """As many more on this machine; skips the test where there cannot be."""
    try:
        before = int(_HUGE_PAGES.read_text())
        _HUGE_PAGES.write_text(str(before + count))
        there = int(_HUGE_PAGES.read_text())
    except OSError as error:
        pytest.skip(f"no huge pages can be reserved: {error}")
    try:
        if there < before + count:
            pytest.skip(f"only {there - before} of {count} huge pages can be reserved")
        yield
    finally:
        _HUGE_PAGES.write_text(str(before))


@pytest.mark.parametrize("nodes", ["container", *(["unpaged"] if WHOLE_MATRIX else [])], indirect=True)
@pytest.mark.parametrize("case", ["busy_huge", "busy_huge_forked"])
def test_huge_pages_keep_their_contents(node: EngineNode, case: str) -> None:
    with huge_pages(4):  # two for each copy
        node.begin(case)
        move_about(node, Mode(rounds=1), case)
        assert node.check(case) == {}
        node.close()
