"""Memory that processes share since a fork: the source continues to share it; its growth at the destination is reported
before the move, and room for it is required."""

from __future__ import annotations

import pytest
from engine_node import EngineNode, Mode
from script_node import begin, end

from wherry.base.errors import Code, Failed, Refused
from wherry.base.units import format_size
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.mover import ContainerMover

pytestmark = pytest.mark.parametrize("nodes", ["container"], indirect=True)
MEBI = 1 << 20
TABLE = 48 * MEBI
WORKERS = 4
PROGRAM = f"""
import hashlib, os, time
table = os.urandom({MEBI}) * {TABLE // MEBI}
expected = hashlib.sha256(table).digest()
def is_right():
    return hashlib.sha256(table).digest() == expected
workers = []
for _ in range({WORKERS}):
    if not (pid := os.fork()):
        while not os.path.exists("/tmp/go"):
            time.sleep(0.01)
        os._exit(0 if is_right() else 1)
    workers.append(pid)
open("/tmp/ready", "w")
wrong = [pid for pid in workers if os.waitpid(pid, 0)[1]]
open("/tmp/result.new", "w").write(f"{{is_right()}} {{wrong}}")
os.rename("/tmp/result.new", "/tmp/result")
"""


def used(node: EngineNode) -> int:
    return Cgroup(node.node_under_test.source.cgroup).memory_used()


def test_forked_workers_move_and_their_growth_is_told(node: EngineNode, sent: list[int]) -> None:
    begin(node, PROGRAM)
    source, before = node.node_under_test.source, used(node)
    (told,) = [one for one in node.node_under_test.driver.inspect(source) if one.grows]
    assert WORKERS * TABLE <= told.grows < WORKERS * TABLE + 32 * MEBI and not told.prevents

    def strike(step: str, _: ContainerMover) -> None:
        if step == "transfer":
            raise Failed(Code.FAILED, "as told", "", "")

    assert "as told" in node.attempt(Mode(rounds=2), strike)
    assert used(node) < before + TABLE // 2
    assert node.attempt(Mode(rounds=2)) == ""
    end(node, sent)


def test_workers_that_would_not_fit_are_refused_and_go_on(node: EngineNode, sent: list[int]) -> None:
    begin(node, PROGRAM)
    under_test, limit = node.node_under_test, used(node) + WORKERS // 2 * TABLE
    place = under_test.source
    under_test.source = place.model_copy(update={"node": place.node.model_copy(update={"memory": limit})})
    (told,) = [one.text for one in under_test.driver.inspect(under_test.source) if one.prevents]
    assert "since a fork" in told and format_size(limit) in told
    with pytest.raises(Refused, match="more memory after a move") as refused:
        under_test.mover().prepare()
    assert refused.value.code == Code.NO_CAPACITY and "since a fork" in refused.value.why
    end(node, sent)
