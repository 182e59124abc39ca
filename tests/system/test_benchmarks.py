"""A benchmark from the command line: real moves by Wherry and by runc, samples, report, and complete clean-up.

And the demo, with a smaller problem than the command's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from names import own_name
from wherry.base.errors import Refused
from wherry.base.paths import Instance
from wherry.lab import demo
from wherry.lab.bench.session import temporary_instance
from wherry.lab.hpcc import Problem
from wherry.lab.report.console import Progress

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

WHERRY = Path(sys.executable).parent / "wherry"
INSTANCE = own_name("tben")


def test_engine_benchmark_runs_beside_runc(tmp_path: Path) -> None:
    out, unset = tmp_path / "engine.jsonl", ("files=", "links=", "contents=", "job=")
    words = ["bench", "run", "engine", "--reps", "1", "--out", str(out), "--set", "sizes=8MiB"]
    words += [word for setting in unset for word in ("--set", setting)]
    done, again = (
        subprocess.run(
            [WHERRY, *words],
            env={**os.environ, "WHERRY_INSTANCE": INSTANCE},
            capture_output=True,
            text=True,
            timeout=500,
        )
        for _ in range(2)
    )
    assert done.returncode == again.returncode == 0, done.stderr + again.stderr
    header, *samples, second = (json.loads(line) for line in out.read_text().splitlines())
    assert second["header"]["settings"] == header["header"]["settings"], "nothing was left to run"
    assert header["header"]["settings"]["sizes"] == "8MiB"
    assert all(sample["ok"] for sample in samples)
    gaps = {sample["by"]: sample["gap"] for sample in samples if "gap" in sample}
    assert {"wherry", "runc"} <= set(gaps) and all(gap > 0 for gap in gaps.values())
    assert "8.0 MiB, gap that the program sees" in done.stdout and out.with_suffix(".html").exists()
    assert not Instance(INSTANCE).run.exists(), "the instance is gone"


def test_cluster_cost_benchmark_keeps_its_clusters_between_runs(tmp_path: Path) -> None:
    small = ("programs=cg", "classes=S", "ranks=2", "crowds=", "apps=", "ring=1", "messages=100")
    words = ["bench", "run", "cluster-cost", "--reps", "1", "--out", str(tmp_path / "cost.jsonl")]
    done = subprocess.run(
        [WHERRY, *words, *(word for setting in small for word in ("--set", setting))],
        env={**os.environ, "WHERRY_INSTANCE": INSTANCE}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *samples = (json.loads(line) for line in (tmp_path / "cost.jsonl").read_text().splitlines())
    assert len(samples) == 2 * (2 * 5 + 2) and all(sample["ok"] for sample in samples), samples
    assert "CG S, 2 ranks, MPICH" in done.stdout and "Gbit/s" in done.stdout
    assert not Instance(INSTANCE).run.exists(), "the instance is gone"


def test_collectives_benchmark_measures_both_ways(tmp_path: Path) -> None:
    small = ("nodes=2", "sizes=2", "rounds=1", "warm=2", "latency=2ms")
    words = ["bench", "run", "collectives", "--reps", "1", "--out", str(tmp_path / "collectives.jsonl")]
    done = subprocess.run(
        [WHERRY, *words, *(word for setting in small for word in ("--set", setting))],
        env={**os.environ, "WHERRY_INSTANCE": INSTANCE}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *samples = (json.loads(line) for line in (tmp_path / "collectives.jsonl").read_text().splitlines())
    assert len(samples) == 2 * 2 * 11 and all(sample["ok"] for sample in samples), samples
    assert "MPICH: alltoall 65536 B" in done.stdout
    assert not Instance(INSTANCE).run.exists(), "the instance is gone"


@pytest.mark.skipif(not shutil.which("mpicc.mpich"), reason="mpich is not installed")
def test_launcher_benchmark_puts_mpirun_beside_wherry_run(tmp_path: Path) -> None:
    some = ("mpis=mpiexec.mpich,no-such-mpi", "rows=usr1,newline,code,absent")
    words = ["bench", "run", "launcher", "--quick", "--out", str(tmp_path / "launcher.jsonl")]
    done = subprocess.run(
        [WHERRY, *words, *(word for setting in some for word in ("--set", setting))],
        env={**os.environ, "WHERRY_INSTANCE": INSTANCE}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *samples = (json.loads(line) for line in (tmp_path / "launcher.jsonl").read_text().splitlines())
    assert [sample for sample in samples if not sample["ok"]] == []
    found = {sample["row"]: sample for sample in samples}
    assert found[""]["skipped"] == "there is no launcher no-such-mpi" and found[""]["skipped"] in done.stderr
    assert found["usr1"]["native"] == found["usr1"]["wherry"] == "ranks got USR1,USR1; exit code 0; ranks end"
    assert found["code"]["native"] == found["code"]["wherry"] == "exit code 7" and found["newline"]["same"]
    assert found["absent"]["wherry"] == "exit code 3" and found["absent"]["reason"]
    assert "the program is not there" in done.stdout and (tmp_path / "launcher.html").exists()
    assert not Instance(INSTANCE).run.exists(), "the instance is gone"


@pytest.mark.skipif(not shutil.which("hpcc"), reason="hpcc is not installed")
def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """HPL natively, on a cluster, and while a node moves: each run is verified, and the page has all of them."""
    monkeypatch.setenv("WHERRY_INSTANCE", INSTANCE)
    small = Problem(n=800, pfacts=1, rfacts=2, depths=1)  # a second, in which the move happens
    with temporary_instance(INSTANCE, keep=False):
        shown = demo.Demo(tmp_path, small, 1)
        shown.run(Progress(""))
    shown.report()
    header, *samples = (json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines())
    assert header["header"]["demo"] == small.description
    assert {one["variant"]: one["ok"] for one in samples} == {variant.name: True for variant in demo.VARIANTS}
    (moved,) = [one for one in samples if "downtime" in one]
    assert moved["variant"] == "moved" and 0 < moved["downtime"] <= moved["total"] and moved["residuals_passed"] == 8
    assert 0 < moved["finished"][0] <= moved["seconds"] + 0.001 and moved["move_began"] >= 0
    assert moved["moved_ranks"] and {len(row) for row in moved["cpu"]} == {5}, "a time and four ranks"
    assert all(one <= other for one, other in zip(moved["cpu"][0], moved["cpu"][-1], strict=True)), "CPU seconds grow"
    out, page = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    assert "virtual cluster, one move" in out and out.splitlines()[-1] == str(tmp_path / "report.html")
    assert page.count("<svg") == 2 and "rank of the node that moved" in page
    assert not Instance(INSTANCE).run.exists(), "the instance is gone"


@pytest.mark.skipif(not shutil.which("hpcc"), reason="hpcc is not installed")
@pytest.mark.parametrize("variant", ["cluster", "native"])
def test_ctrl_c_ends_the_demo_and_leaves_nothing(tmp_path: Path, variant: str) -> None:
    """While ranks compute, on the cluster or natively."""
    env, directory = {**os.environ, "WHERRY_INSTANCE": INSTANCE}, tmp_path / "runs" / f"0-{variant}"
    with (tmp_path / "said").open("w+") as said:
        words = ["demo", str(tmp_path), "--n", "300"]
        shown = subprocess.Popen(["env", "--default-signal=INT", WHERRY, *words], env=env, stdout=said, stderr=said)
        deadline = time.monotonic() + 300
        while len(_ranks(directory)) < 4:
            assert shown.poll() is None and time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.1)
        shown.send_signal(signal.SIGINT)
        assert shown.wait(120) == 130, (tmp_path / "said").read_text()
    assert not _ranks(directory), "its ranks have ended"
    assert not Instance(INSTANCE).run.exists() and not Instance(INSTANCE).state.exists(), "the instance is gone"
    lines = (tmp_path / "said").read_text().splitlines()
    assert lines[0].startswith("demo: ") and "two idle cores" in lines[0] and "Traceback" not in "".join(lines), lines


def _ranks(directory: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "comm").read_text() == "hpcc\n" and os.path.samefile(process / "cwd", directory):
                found.append(process.name)
    return found


@pytest.mark.parametrize(("reps", "n", "says"), [(2, 1000, "too few"), (3, 99, "out of range"), (3, 1501, "a minute")])
def test_a_demo_that_shows_nothing_is_refused(tmp_path: Path, reps: int, n: int, says: str) -> None:
    with pytest.raises(Refused) as error:
        demo.run(tmp_path, reps, n, False)
    assert says in f"{error.value.what} {error.value.why}"
