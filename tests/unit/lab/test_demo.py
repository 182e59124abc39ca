"""The demo: its texts and charts of samples, its refusals before it begins, how a run of hpcc is followed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.lab import demo, hpcc
from wherry.lab.bench.samples import Samples
from wherry.lab.demo_page import CLUSTER, MOVED, NATIVE, SHARED, VARIANTS, DemoPage
from wherry.lab.hpcc_watch import HpccWatch
from wherry.lab.rank_cpu import RankCpu
from wherry.lab.report.console import Progress
from wherry.lab.report.timeline import Timeline
from wherry.model.records import Move, Phase

PROBLEM = hpcc.Problem(n=300, pfacts=1, rfacts=1, bcasts=2, depths=2)
PHASES = {"prepare": 0.1, "rounds": 0.01, "freeze": 0.1, "transfer": 0.2, "restore": 0.1, "commit": 0.01, "thaw": 0.02}
ROW = "WR00L2L2         300    80     2     2               0.01              1.0e+00\n"


def a_move(phases: dict[str, float], downtime: float | None = 0.43) -> dict[str, Any]:
    places = {"source": "b1", "destination": "a1", "phase": Phase.DONE, "created": 1.0}
    move = Move(
        id="mv-1", node="demo-2", cluster="demo", phases=phases, downtime=downtime, total=0.6, bytes=2**20, **places
    )
    return move.model_dump()


def page_of(tmp_path: Path, seconds: dict[str, list[float]]) -> DemoPage:
    """A page of samples; each move begins a second after HPL."""
    samples = Samples(tmp_path / "samples.jsonl", {})
    for variant, values in seconds.items():
        for turn, value in enumerate(values):
            moved: dict[str, Any] = {}
            if variant == MOVED.name:
                cpu = [[at / 10, at / 10, at / 20] for at in range(40)]
                moved = {"move": a_move({**PHASES, "done": 0.1}), "downtime": 0.43, "total": 0.6, "bytes": 2**20}
                moved |= {
                    "move_began": 1.0,
                    "finished": [0.5, 0.9, 1.8, 2.2],
                    "cpu": cpu,
                    "moved_ranks": [1],
                }
            samples.add(variant=variant, turn=turn, seconds=value, problem="", **moved)
    return DemoPage(samples, PROBLEM, {"cpus": "2"})


def few(moved: float = 3.0) -> dict[str, list[float]]:
    return {NATIVE.name: [1.0] * 3, SHARED.name: [0.5] * 3, CLUSTER.name: [2.0] * 3, MOVED.name: [moved] * 3}


def test_verdict_is_made_from_the_samples(tmp_path: Path) -> None:
    text = page_of(tmp_path, few()).verdict()
    assert "2.00 times [2.00, 2.00] (n = 3) as long as natively over TCP" in text
    assert "with one live move 1.50 times [1.50, 1.50] (n = 3) as long as without" in text
    assert "was frozen for 0.43 s [0.43, 0.43] (n = 3)" in text
    assert "too few runs for 95 % intervals" in text and "no difference" not in text
    other = page_of(tmp_path, few(2.0) | {NATIVE.name: [4.0] * 3}).verdict()
    assert "0.50 times [0.50, 0.50]" in other and "1.00 times [1.00, 1.00]" in other


def test_verdict_of_many_runs_has_intervals_and_says_when_they_tell_no_difference(tmp_path: Path) -> None:
    noisy = [1.0, 3.0] * 5
    text = page_of(
        tmp_path, {NATIVE.name: [1.0] * 10, SHARED.name: [1.0], CLUSTER.name: [2.0] * 10, MOVED.name: noisy}
    ).verdict()
    assert "(n = 10)" in text and "95 % intervals in brackets" in text and "too few" not in text
    assert "The interval of the move has 1 in it: these runs show no difference." in text


def test_verdict_tells_that_hpl_ended_before_the_move(tmp_path: Path) -> None:
    """The moves thaw the node 1.54 s after HPL began."""
    assert "larger --n" not in page_of(tmp_path, few(1.6)).verdict()
    assert "In 3 of 3 runs HPL had ended before the move had" in page_of(tmp_path, few(1.5)).verdict()


def test_report_begins_with_its_verdict_and_the_move_as_a_picture(tmp_path: Path) -> None:
    page = page_of(tmp_path, few())
    html = page.report().html()
    body = html[html.index("<h1>") :]
    order = [body.index(text) for text in ("2.00 times [2.00, 2.00]", "<svg", "<h2>HPL</h2>", "What these numbers")]
    assert order == sorted(order)
    picture = body[body.index("<svg") : body.index("</svg>")]
    for text in (
        "prepare 100.0 ms",
        "transfer 200.0 ms",
        "thaw 20.0 ms",
        "clean up",
        "the node is frozen",
        "430.0 ms",
    ):
        assert text in picture, text
    assert "rank of the node that moved" in picture and "factorisations" in picture
    assert "during which the node was frozen took 900.0 ms; the median of the other 3 is 400.0 ms." in body


def test_failed_runs_are_listed_and_do_not_count(tmp_path: Path) -> None:
    page = page_of(tmp_path, few())
    page._samples.add(ok=False, variant=MOVED.name, turn=1, seconds=99.0, problem="3 of 4 residual checks passed")
    html = page.report().html()
    assert "3 of 4 residual checks passed" in html and "do not count: 1." in html
    assert "1.50 times [1.50, 1.50] (n = 3)" in page.verdict()


def test_timeline_is_of_the_run_nearest_to_the_median_and_places_the_freeze(tmp_path: Path) -> None:
    found = page_of(tmp_path, few() | {MOVED.name: [9.0, 3.0, 2.0]}).timeline()
    assert found is not None
    shown, sample = found
    assert sample["turn"] == 1
    assert shown.stood == pytest.approx((1.11, 1.54))
    assert [name for name, *_ in shown.strips()] == [*PHASES, "done"]
    assert shown.strips()[2] == ("freeze", pytest.approx(1.11), 0.1)
    ours, others = shown.cpu.values()
    assert ours[10] == (1.0, 0.5) and others[10] == (1.0, 1.0)


@pytest.mark.parametrize("steps", [[], [0.1], [0.1, 0.9, 1.2, 7.0]])
def test_timeline_is_drawn_with_any_number_of_steps(steps: list[float]) -> None:
    """Its limits are those of the move, whatever the job's are."""
    shown = Timeline(1.0, PHASES, (1.1, 1.5), steps)
    low, high = shown.limits()
    assert low < 1.0 and high > 1.0 + sum(PHASES.values())
    figure = shown.as_figure()
    assert len(figure.axes) == 2 and figure.axes[0].get_xlim() == (low, high)


def test_cpu_of_the_timeline_counts_from_its_left_edge() -> None:
    shown = Timeline(1.0, PHASES, (1.1, 1.5), [], cpu={"ranks": [(0.0, 5.0), (0.9, 7.0), (1.2, 7.5), (9.0, 20.0)]})
    assert shown.within(shown.cpu["ranks"]) == ([0.9, 1.2], [0.0, 0.5])
    assert len(shown.as_figure().axes) == 3


def test_the_first_line_says_what_comes_and_how_long_it_takes() -> None:
    assert "runs HPL 12 times" in demo.announcement(3, 1000) and "about 6 minutes" in demo.announcement(3, 1000)
    assert "runs HPL 40 times" in demo.announcement(10, 300) and "about 8 minutes" in demo.announcement(10, 300)
    makefile = (Path(demo.__file__).parents[3] / "Makefile").read_text()
    assert demo.announcement(3, 1000).partition(": about ")[2] in makefile


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine on which the demo can run."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**40))
    monkeypatch.setattr(demo, "_available_memory", lambda: 2**40)
    monkeypatch.setattr(demo, "instance", lambda: Instance("tdemo"))
    return monkeypatch


def refusal(out: Path) -> Refused:
    with pytest.raises(Refused) as refused:
        demo.check_machine(out)
    return refused.value


def test_a_machine_that_can_is_not_refused(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    demo.check_machine(tmp_path / "not" / "yet")


@pytest.mark.parametrize(
    ("name", "value", "code", "what", "next"),
    [
        ("geteuid", lambda: 1000, Code.PERMISSION, "needs root", "sudo"),
        ("which", lambda name: None if name == "hpcc" else name, Code.UNSUPPORTED, "hpcc", "make setup"),
        ("which", lambda name: None if "mpirun" in name else name, Code.UNSUPPORTED, "Open MPI", "make setup"),
        ("_available_memory", lambda: 2**29, Code.NO_CAPACITY, "only 512.0 MiB of memory", "end other programs"),
        ("disk_usage", lambda _: SimpleNamespace(free=2**20), Code.NO_CAPACITY, "only 1.0 MiB is free", "--out"),
    ],
)
def test_what_is_missing_is_refused_with_what_to_do(
    machine: pytest.MonkeyPatch, tmp_path: Path, name: str, value: Callable[..., Any], code: Code, what: str, next: str
) -> None:
    owner = {"geteuid": os, "_available_memory": demo}.get(name, shutil)
    machine.setattr(owner, name, value)
    error = refusal(tmp_path / "report")
    assert error.code == code and what in error.what and error.why and next in error.next


def test_available_memory_is_the_machines() -> None:
    assert 0 < demo._available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def write(directory: Path, text: str, seen: Callable[[], bool] = lambda: True) -> None:
    """Appends to hpcc's output file, and waits until that was seen."""
    with (directory / hpcc.OUTPUT).open("a") as file:
        file.write(text)
    waiting.until(seen, text)


def test_a_run_is_followed_line_by_line_and_the_move_begins_after_a_quarter(tmp_path: Path) -> None:
    seen: list[int] = []
    moved_at: list[int] = []

    def move() -> Move:
        moved_at.append(len(seen))
        return Move.model_validate(a_move(PHASES) | {"created": time.time()})

    with HpccWatch(tmp_path, PROBLEM, move, seen.append) as watch:
        write(tmp_path, f"other tests\n{hpcc.BEGIN}\n", lambda: watch._begin is not None)
        assert not moved_at, "a quarter of four is one"
        write(tmp_path, ROW, lambda: watch.move is not None)
        for count in (2, 3, 4):
            write(tmp_path, ROW, lambda count=count: len(seen) == count)
        assert watch.seconds is None
        write(tmp_path, f"{hpcc.END}\n", lambda: watch.seconds is not None)
    progress = watch.progress()
    assert seen == [1, 2, 3, 4] and moved_at == [1] and not watch.problem
    assert watch.seconds is not None and 0 < progress["finished"][0] < progress["finished"][3] < watch.seconds
    assert progress["finished"][0] - 0.001 <= progress["move_began"] < progress["finished"][1]


def test_a_watch_ends_with_its_block_whatever_ends_that(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run: no thread continues to watch."""
    watch = HpccWatch(tmp_path, PROBLEM)
    with pytest.raises(KeyboardInterrupt), watch:
        raise KeyboardInterrupt
    assert not watch._thread.is_alive()


def test_a_move_that_never_began_and_one_that_failed_are_problems(tmp_path: Path) -> None:
    with HpccWatch(tmp_path, PROBLEM, lambda: pytest.fail("moved")) as never:
        pass
    assert "nothing was moved" in never.problem

    def fails() -> Move:
        raise Refused(Code.NO_CAPACITY, "host a1 is full")

    with HpccWatch(tmp_path, PROBLEM, fails) as failed:
        write(tmp_path, f"{hpcc.BEGIN}\n{ROW}", lambda: bool(failed.problem))
    assert failed.problem == "the move failed: host a1 is full"


def a_rank(proc: Path, pid: int, rank: int, seconds: float, directory: Path, program: str = "hpcc") -> None:
    process = proc / str(pid)
    process.mkdir(parents=True, exist_ok=True)
    (process / "comm").write_text(f"{program}\n")
    (process / "environ").write_bytes(f"HOME=/\0OMPI_COMM_WORLD_RANK={rank}\0".encode())
    (process / "schedstat").write_text(f"{round(seconds * 1e9)} 0 0\n")
    if not (process / "cwd").exists():
        (process / "cwd").symlink_to(directory)


def test_cpu_of_ranks_is_counted_across_a_move(tmp_path: Path) -> None:
    proc, ours, other = tmp_path / "proc", tmp_path / "ours", tmp_path / "other"
    ours.mkdir()
    other.mkdir()
    cpu = RankCpu("hpcc", ours, 2, proc)
    a_rank(proc, 10, 0, 5.0, ours)
    a_rank(proc, 20, 1, 9.0, other)
    a_rank(proc, 21, 1, 9.0, ours, program="mpirun")
    assert cpu.sample() == [], "one of two ranks is there"
    a_rank(proc, 11, 1, 7.0, ours)
    assert cpu.sample() == [0.0, 0.0]
    a_rank(proc, 10, 0, 5.5, ours)
    a_rank(proc, 11, 1, 7.25, ours)
    assert cpu.sample() == [0.5, 0.25] and not cpu.replaced
    shutil.rmtree(proc / "11")
    assert cpu.sample() == [0.5, 0.25], "while it is frozen nothing is added"
    a_rank(proc, 31, 1, 0.125, ours)
    assert cpu.sample() == [0.5, 0.25] and cpu.replaced == {1}
    a_rank(proc, 31, 1, 1.125, ours)
    assert cpu.sample() == [0.5, 1.25]


def test_cpu_of_a_real_process_grows(tmp_path: Path) -> None:
    """A busy process with a rank's environment, found by its name and directory."""
    busy = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], cwd=tmp_path, env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    )
    try:
        # not the name in /proc: a process that is just being started may still have its parent's name
        cpu = RankCpu(Path(sys.executable).name[:15], tmp_path, 1)
        waiting.until(lambda: (cpu.sample() or [0.0])[0] > 0.05, "the CPU time of a busy process")
    finally:
        busy.kill()
        busy.wait()


def test_a_native_run_that_is_cut_short_leaves_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text("#!/bin/sh\necho $$ >pid\nexec sleep 1000\n")
    launcher.chmod(0o755)
    monkeypatch.setattr(demo, "_mpirun", lambda: str(launcher))
    monkeypatch.setattr(demo, "_RUN_LIMIT", 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        demo._native(NATIVE, tmp_path)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_variants_have_names_of_their_own() -> None:
    assert len({variant.name for variant in VARIANTS}) == len({variant.text for variant in VARIANTS}) == len(VARIANTS)


class FakeClient:
    """A daemon that made the cluster; `refuses` is its error for the move."""

    refuses: Refused | None = None

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def up(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(id="op-1")

    def wait(self, *_: object) -> None: ...

    def nodes(self, _: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="demo-1", host="a2"), SimpleNamespace(name="demo-2", host="b1")]

    def predict(self, node: str, host: str) -> None:
        assert (node, host) == ("demo-2", "a1")
        if self.refuses:
            raise self.refuses


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], str]], list[str]]:
    """Makes each run of a demo end with the problem that a function gives for its number; returns the variants run."""

    def prepare(problem: Callable[[int], str]) -> list[str]:
        made: list[str] = []

        def run_once(self: demo.Demo, _: object, variant: Any, turn: int, note: Any) -> tuple[str, str]:
            note("under way")
            made.append(variant.name)
            why = problem(len(made))
            self._samples.add(ok=not why, problem=why, variant=variant.name, turn=turn, seconds=1.0)
            return why, why or "1 s"

        monkeypatch.setattr(demo, "Client", FakeClient)
        monkeypatch.setattr(demo.Demo, "_run_once", run_once)
        return made

    return prepare


def test_every_variant_runs_in_every_turn_with_a_line_for_each(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = runs(lambda _: "")
    demo.Demo(tmp_path, PROBLEM, 3).run(Progress(""))
    assert all(sorted(made[turn * 4 : turn * 4 + 4]) == sorted(one.name for one in VARIANTS) for turn in range(3))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "making a virtual cluster of 4 nodes" and lines[-1].startswith("run 12 of 12, ")
    assert len(lines) == 13 and "left" in lines[1]


def test_a_move_that_would_be_refused_ends_the_demo_before_its_runs(
    runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs(lambda _: "")
    monkeypatch.setattr(FakeClient, "refuses", Refused(Code.UNSUPPORTED, "no CRIU works here"))
    with pytest.raises(Refused, match="no CRIU"):
        demo.Demo(tmp_path, PROBLEM, 3).run(Progress(""))
    assert not made


def test_three_failures_in_a_row_end_the_demo_with_what_to_look_at(runs: Any, tmp_path: Path) -> None:
    made = runs(lambda number: "" if number in (1, 4) else "3 of 4 residual checks passed")
    with pytest.raises(Failed, match="3 runs in a row failed: 3 of 4 residual checks passed") as failed:
        demo.Demo(tmp_path, PROBLEM, 3).run(Progress(""))
    assert len(made) == 7 and str(tmp_path / "runs") in failed.value.next and "doctor" in failed.value.next


def test_a_variant_of_which_no_run_counts_is_named_with_its_problem(runs: Any, tmp_path: Path) -> None:
    made: list[str] = runs(lambda number: "exit code 1" if made[number - 1] == SHARED.name else "")
    with pytest.raises(Failed, match="no run of 'native, shared memory' counts: exit code 1") as failed:
        demo.Demo(tmp_path, PROBLEM, 3).run(Progress(""))
    assert str(tmp_path / "runs") in failed.value.next


def test_problem_of_a_run_says_where_to_look(tmp_path: Path) -> None:
    shown = demo.Demo(tmp_path, PROBLEM, 3)
    bad = hpcc.Result(passed=3, failed=1, times=(0.1,) * 4, finished=True, b_eff={})
    assert shown._problem_of(bad, 0, tmp_path) == f"3 of 4 residual checks passed, see {tmp_path / hpcc.OUTPUT}"
    assert shown._problem_of(bad, 1, tmp_path) == "exit code 1"
    (tmp_path / "output").touch()
    assert shown._problem_of(bad, 1, tmp_path) == f"exit code 1, see {tmp_path / 'output'}"
    good = hpcc.Result(passed=4, failed=0, times=(0.1,) * 4, finished=True, b_eff={})
    assert shown._problem_of(good, 0, tmp_path) == ""


def test_the_demo_ends_with_verdict_chart_and_the_path_of_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = demo.Demo(tmp_path, PROBLEM, 3)
    shown._samples = page_of(tmp_path, few())._samples
    shown._samples.add(ok=False, variant=MOVED.name, turn=1, seconds=99.0, problem="3 of 4 residual checks passed")
    shown.report()
    lines = capsys.readouterr().out.splitlines()
    assert "2.00 times [2.00, 2.00] (n = 3) as long as natively" in lines[1]
    rows = {
        variant.text: next(line for line in lines if line.startswith(f"  {variant.text}  ")) for variant in VARIANTS
    }
    bars = {text: row.count("=") - row.count("n=") for text, row in rows.items()}
    assert bars[SHARED.text] < bars[NATIVE.text] < bars[CLUSTER.text] < bars[MOVED.text]
    assert "run 2 of moved failed and does not count: 3 of 4 residual checks passed" in lines
    assert lines[-1] == str(tmp_path / "report.html") and Path(lines[-1]).exists()
