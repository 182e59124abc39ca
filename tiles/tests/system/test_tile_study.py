"""The study `manycore` on a testbed: a run of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from names import own_name
from wherry.client import daemon_process
from wherry.lab.study import render, runner
from wherry.lab.study.levels import Combination
from wherry.lab.study.requirements import unavailable_features
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed
from wherry_tiles.study.levels import combination_of
from wherry_tiles.study.manycore import Manycore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts of the fabric are made by root")


class Tiles(Manycore):
    """One of each kind of run: threads, a move on this machine and one between hosts, moves together, the baselines.

    A single pair is moved: on a busy machine two moves need not overlap.
    """

    def combinations(self) -> Sequence[Combination]:
        moves = [combination_of("move", how, "1", "8") for how in ("precopy", "tcp-direct")]
        others = [combination_of("threads", how, threads="17") for how in ("mixed", "pthreads-small")]
        messages = [combination_of("message", how) for how in ("tiles", "openmpi")]
        single = combination_of("parallel", "direct", "1", "32", pairs="1")
        return [
            *moves,
            *others,
            single,
            combination_of("beside", "criu"),
            *messages,
            combination_of("mesh", "balanced"),
        ]


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    monkeypatch.setenv("WHERRY_INSTANCE", own_name("ttst"))
    created = Testbed(tmp_path)
    yield created
    created.close()
    command = [str(Path(sys.executable).parent / "wherry"), "down", "--all", "--yes"]
    down = subprocess.run(command, capture_output=True, text=True, check=False)
    assert down.returncode == 0, down.stderr


def test_each_kind_of_run(tmp_path: Path, testbed: Testbed) -> None:
    study = Tiles(True, unavailable_features(daemon_process.examine()))
    results = Results.create(tmp_path / "study", study, 1)
    with results.session():
        runner.run(results, testbed, lambda *_: None)
    assert len(results.counted()) == len(study.combinations()), [one.problem for one in results.runs]
    kinds = {
        kind: [cell for cell in study.combinations() if ("what", kind) in cell.levels] for kind in ("mesh", "move")
    }
    assert all(kinds.values()) and all(results.values(cell, "hops") == [1.0] for cell in kinds["mesh"])
    assert all(0 < results.values(cell, "first")[0] <= results.values(cell, "all")[0] for cell in kinds["move"])
    (frozen,) = (cell for cell in study.combinations() if "criu" in dict(cell.levels).values())
    assert results.values(frozen, "downtime")[0] > 0
    assert render.write(results)[0].read_text()
