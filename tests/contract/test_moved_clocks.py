"""Nodes with clocks of their own, as after a move from another kernel: they are moved with all their timers.

One machine has one kernel, so a first move gets clocks of the source that are ahead by hours. From then on the node
has a time namespace, and CRIU works inside of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from engine_node import EngineNode, Mode
from test_objects import CARRIED, TIMERS

from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container import clocks
from wherry.node.container.host import Clocks
from wherry.node.container.local_host import LocalHost
from wherry.node.container.processes import first_process
from wherry.node.protocol import Placement

pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs that hold the objects"),
    pytest.mark.skipif(not clocks.supported(), reason="this kernel has no time namespaces"),
]
_CONTAINER = pytest.mark.parametrize("nodes", ["container"], indirect=True)
_LATER = Mode(rounds=1, parameters=MigrationParameters(mode="post-copy"))
_HOUR = 3600 * 10**9
_AHEAD = {"a1": (_HOUR, 2 * _HOUR)}
"""By how much a host's reported clocks are ahead of this machine's."""


@pytest.fixture
def elsewhere(node: EngineNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineNode]:
    """The node, after a move from a host that had booted hours before; hosts have a kernel each from then on."""
    true, ahead = LocalHost.clocks, dict(_AHEAD)

    def told(host: LocalHost, place: Placement) -> Clocks:
        seen = true(host, place)
        monotonic, boottime = ahead.get(place.host, (0, 0))
        return replace(
            seen, boot=f"of {place.host}", monotonic=seen.monotonic + monotonic, boottime=seen.boottime + boottime
        )

    monkeypatch.setattr(LocalHost, "clocks", told)
    node.aim("a2")
    assert node.attempt(Mode(rounds=0)) == ""
    ahead.clear()
    yield node


def ahead_of(node: EngineNode) -> tuple[int, int]:
    """How far the node's clocks are ahead of this machine's."""
    pid = first_process(node.node_under_test.source)
    assert pid is not None
    found = clocks.of_process(pid)
    return found.monotonic, found.boottime


@pytest.mark.parametrize(
    ("nodes", "second"),
    [("container", _LATER), ("unpaged", Mode())],
    ids=["post-copy", "unpaged"],
    indirect=["nodes"],
)
def test_clocks_go_on_from_where_they_were_on_every_host_and_in_new_programs(
    elsewhere: EngineNode, second: Mode
) -> None:
    monotonic, boottime = ahead_of(elsewhere)
    assert 0 <= monotonic - _HOUR < 10**9 and 0 <= boottime - 2 * _HOUR < 10**9
    for host, mode in (("b1", Mode(rounds=1)), ("a1", second), ("a2", Mode(rounds=1))):
        elsewhere.aim(host)
        assert elsewhere.attempt(mode) == ""
        before, (monotonic, boottime) = (monotonic, boottime), ahead_of(elsewhere)
        assert 0 <= monotonic - before[0] < 10**9 and 0 <= boottime - before[1] < 10**9
    directory = elsewhere.directory(elsewhere.node_under_test.source)
    elsewhere.run("/bin/sh", "-c", "cut -d ' ' -f 1 /proc/uptime >/tmp/uptime")
    uptime = float((directory / "uptime").read_text())
    assert abs(uptime - time.clock_gettime(time.CLOCK_BOOTTIME) - 2 * 3600) < 30


@_CONTAINER
def test_all_timers_go_on_in_them_also_when_a_move_was_taken_back(elsewhere: EngineNode) -> None:
    elsewhere.make(*TIMERS)
    elsewhere.aim("b1")
    elsewhere.move_and_take_back()
    assert elsewhere.attempt(Mode(rounds=1)) == ""
    assert elsewhere.check(*TIMERS) == {}


@_CONTAINER
def test_a_machine_has_all_that_its_own_nodes_use(node: EngineNode) -> None:
    """So a node with all that moves carry is refused at no machine with the same files, but for watches of these, which
    CRIU restores by inodes of one machine (`test_shared_files` has their refusal)."""
    node.make(*(name for name in CARRIED if name != "inotify_shared"))
    place = node.node_under_test.source
    host = node.host_of(place)
    used = host.uses(place)
    assert host.lacks(used) == ""
    assert any(file.sum and file.path.endswith("/libc.so.6") for file in used.files)
