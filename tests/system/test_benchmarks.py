"""A benchmark from the command line: real moves by Wherry and by runc, samples, report, and complete clean-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from names import own_name
from wherry.base.paths import Instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

WHERRY = Path(sys.executable).parent / "wherry"
INSTANCE = own_name("tben")


def test_move_benchmark_runs_beside_runc(tmp_path: Path) -> None:
    words = ["bench", "run", "move", "--set", "sizes=8MiB", "--reps", "1", "--out", str(tmp_path / "moves.jsonl")]
    done = subprocess.run(
        [WHERRY, *words], env={**os.environ, "WHERRY_INSTANCE": INSTANCE}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    header, *samples = (json.loads(line) for line in (tmp_path / "moves.jsonl").read_text().splitlines())
    assert header["header"]["settings"] == {"sizes": "8MiB"}
    assert {sample["by"]: sample["ok"] for sample in samples} == {"wherry": True, "runc": True}
    assert all(sample["downtime"] > 0 for sample in samples)
    assert "8.0 MiB, downtime" in done.stdout and (tmp_path / "moves.html").exists()
    assert not Instance(INSTANCE).run.exists(), "the instance is gone"
