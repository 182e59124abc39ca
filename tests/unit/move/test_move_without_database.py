"""A database that fails during a move, its disk broken for instance: the node runs again before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakeworld import World

from wherry.base.errors import Code, Failed
from wherry.model.records import NodeState, Phase
from wherry.move import state_machine
from wherry.node.fake import Copy

NODE, SOURCE, DESTINATION = "hello-2", "b1", "a2"


@pytest.mark.parametrize("phase", [Phase.ROUNDS, Phase.FREEZE])
def test_the_node_runs_at_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    monkeypatch.setattr(state_machine, "_PAUSE", 0.0)
    world = World(tmp_path, rounds=True)
    world.make()
    store: Any = world.store
    names = ("put_move", "put_node", "move", "node", "add_event")
    real = {name: getattr(store, name) for name in names}

    def fail(*_: object, **__: object) -> None:
        raise Failed(Code.FAILED, "the instance's database cannot be read", "disk I/O error")

    def put_move(move: Any) -> None:
        if move.phase == phase:
            for name in names:
                setattr(store, name, fail)
            fail()
        real["put_move"](move)

    store.put_move = put_move
    with pytest.raises(Failed, match="database"):
        world.moves.run(NODE, DESTINATION)
    assert world.driver.copies(NODE) == {SOURCE: Copy.RUNNING} and world.fabric.plugged(NODE) == [SOURCE]
    for name in names:
        setattr(store, name, real[name])
    world.moves.recover()
    assert not world.store.moves(unfinished=True)
    found = world.store.node(NODE)
    assert found and (found.state, found.host) == (NodeState.RUNNING, SOURCE)
    world.assert_one_copy(NODE, SOURCE)
