"""Studies with fake workloads: order, storage, resuming, extending, failures, reports. No cluster is used."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fakestudy import FakeStudy, constant_values, make, page_text, rows, run

from wherry.base.errors import Failed, Refused
from wherry.lab import hpcc
from wherry.lab.study import program_output, render, runner
from wherry.lab.study.analysis import significance_text
from wherry.lab.study.catalog import STUDIES, find
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.results import Results


def test_each_turn_runs_every_combination_once_in_its_own_order() -> None:
    study = FakeStudy(quick=False)
    turns = [study.turn(number) for number in range(20)]
    assert all(sorted(map(str, turn)) == sorted(map(str, study.combinations())) for turn in turns)
    assert len({tuple(map(str, turn)) for turn in turns}) == 2
    assert turns == [FakeStudy(quick=False).turn(number) for number in range(20)]


def test_samples_are_stored_with_units_and_environment(tmp_path: Path) -> None:
    results = make(tmp_path)
    assert len(run(results)) == 8
    kept_rows = rows(results)
    assert {row["metric"] for row in kept_rows} == {"seconds", "at", "run"} and len(kept_rows) == 8 * 3
    assert {row["unit"] for row in kept_rows} == {"s"} and {row["x"] for row in kept_rows if row["metric"] == "at"} == {
        "8"
    }
    session = json.loads((tmp_path / "study.json").read_text())["sessions"][0]
    assert session["before"]["cpu"] and session["after"]["load"]
    again = Results(tmp_path, results.study, results.manifest)
    assert again.values(Combination.of(size="large", kind="a"), "seconds") == [2.0] * 4
    assert [run.values for run in again.runs] == [run.values for run in results.runs]


def test_interrupted_study_resumes(tmp_path: Path) -> None:
    calls: list[Combination] = []

    def interrupted(combination: Combination) -> list[Value]:
        calls.append(combination)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return constant_values(combination)

    with pytest.raises(KeyboardInterrupt):
        run(make(tmp_path, interrupted))
    results = make(tmp_path)
    assert len(results.counted()) == 3 and runner.count_missing(results) == 5
    assert "5 of 8 runs are missing" in page_text(results)
    run(results)
    assert len(results.counted()) == 8 and runner.count_missing(results) == 0
    assert len({(run.turn, run.combination) for run in results.counted()}) == 8
    assert "missing" not in page_text(results)


def test_a_study_is_extended_and_never_shortened(tmp_path: Path) -> None:
    run(make(tmp_path, repetitions=2))
    results = make(tmp_path, repetitions=5)
    assert len(runner.remaining_runs(results)) == 6
    run(results)
    assert len(results.counted()) == 10
    assert make(tmp_path, repetitions=1).manifest["repetitions"] == 5


def test_failed_run_is_recorded_and_not_counted(tmp_path: Path) -> None:
    broken = [RunFailed("verification did not succeed"), Refused("NOT_FOUND", "no program"), OSError("disk"), None]

    def measure_run(combination: Combination) -> list[Value]:
        error = broken.pop(0) if broken else None
        if error:
            raise error
        return constant_values(combination)

    results = make(tmp_path, measure_run)
    run(results)
    assert [run.problem for run in results.failed()] == ["verification did not succeed", "no program", "OSError: disk"]
    assert len(results.counted()) == 5
    failed = [row for row in rows(results) if row["ok"] == "0"]
    assert {row["metric"] for row in failed} == {"run"}
    text = page_text(results)
    assert "verification did not succeed" in text and "Runs that failed and do not count: 3" in text
    run(results)  # the next session retries them
    assert len(results.counted()) == 8 and len(results.failed()) == 3


def test_study_stops_after_consecutive_failures(tmp_path: Path) -> None:
    def measure_run(_cell: Combination) -> list[Value]:
        raise RunFailed("the node is lost")

    results = make(tmp_path, measure_run)
    with pytest.raises(Failed, match="in a row failed"):
        run(results)
    assert len(results.failed()) == 5
    assert "no run counts" in page_text(results)


def test_torn_run_is_not_counted_and_its_number_not_reused(tmp_path: Path) -> None:
    results = make(tmp_path)
    run(results)
    text = results.samples_file.read_text()
    results.samples_file.write_text(text[: text.rindex("seconds") + 10])  # in the middle of run 8
    again = make(tmp_path)
    assert len(again.counted()) == 7
    run(again)
    final = make(tmp_path)
    assert len(final.counted()) == 8 and all(len(run.values) == 2 for run in final.counted())
    assert max(run.number for run in final.runs) == 9 or len({run.number for run in final.runs}) == 8


def test_warmup_runs_are_not_counted(tmp_path: Path) -> None:
    study = FakeStudy(quick=False)
    study.warmups = 1
    results = Results.create(tmp_path, study, 2)
    assert len(run(results)) == 6
    assert len(results.counted()) == 4 and sum(run.warmup for run in results.runs) == 2
    assert runner.remaining_runs(results) == []


def test_directory_of_another_study_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(Refused, match="holds another study"):
        Results.create(tmp_path, FakeStudy(quick=True), 1)
    with pytest.raises(Refused, match="not the directory of a study"):
        Results.read_manifest(tmp_path / "elsewhere")
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(Refused, match="cannot be read"):
        Results.read_manifest(tmp_path)


def test_second_concurrent_session_is_refused(tmp_path: Path) -> None:
    results = make(tmp_path)
    with results.session(), pytest.raises(Refused, match="another run"), make(tmp_path).session():
        pass


def test_report_is_self_contained_and_lists_excluded_levels(tmp_path: Path) -> None:
    results = make(tmp_path)
    run(results)
    text = render.write(results)[0].read_text()
    assert "there are no VMs" in text and "a remark" in text and "n=" not in text
    assert " src=" not in text and "<link" not in text
    with (tmp_path / "summary.csv").open() as file:
        summary = {(row["size"], row["metric"]): row for row in csv.DictReader(file)}
    assert summary["large", "seconds"]["median"] == "2" and summary["large", "seconds"]["n"] == "4"


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_every_study_renders_with_no_some_and_all_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Study], quick: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # thousands of runs
    unavailable = {"dirty pages": "no userfaultfd", "criu": "no CRIU"}
    study = kind(quick, {**unavailable, **({"vm": "this version has no VM nodes"} if quick else {})})
    results = Results.create(tmp_path, study, 2)
    assert len(set(study.combinations())) == len(study.combinations())
    assert study.page(results).tables
    for number, combination in enumerate(study.combinations()):
        if number % 2:
            results.add(made_up_run(results, combination, 1))
    assert study.page(results).tables
    for combination in study.combinations():
        results.add(made_up_run(results, combination, 2))
    if not quick:  # pages of the full study differ only in sizes
        return
    text = page_text(results, drawn=True)
    assert "Left out" in text and any(why in text for why in ("no VM nodes", *unavailable.values())) and "n=2" in text


def test_vm_levels_depend_on_what_the_machine_supports(tmp_path: Path) -> None:
    """Without KVM, levels that would take hours or that crash the emulator are left out by name."""

    def left_out(kind: str, quick: bool, **unavailable: str) -> dict[str, str]:
        levels = (level for factor in find(kind)(quick, unavailable).factors() for level in factor.levels)
        return {level.name: level.left_out for level in levels if level.left_out}

    assert "vms" in {combination["how"] for combination in find("xen-migration")(False).combinations()}
    small = {"hpl3-emulated", "sp-emulated"}
    assert set(left_out("xen-migration", False)) == {"xen", *small}, "its hosts run QEMU, here with KVM"
    slow = left_out("xen-migration", False, kvm="no KVM")
    assert set(slow) == {"xen", "vms-full"}
    assert "no KVM" in slow["vms-full"] and "hours" in slow["vms-full"]
    stuck = left_out("xen-migration", False, **{"vm-moves": "QEMU 7"})
    assert {name for name, why in stuck.items() if why == "QEMU 7"} == {"vm-idle-moved", "vms-moved"}
    assert set(stuck) == {"vm-idle-moved", "vms-moved", "xen", *small}
    for kind in ("xen-migration", "nic-degradation", "colocated", "multi-site"):
        assert "no VMs" in left_out(kind, False, vm="no VMs").values()
        assert any("--quick" in why and "boot" in why for why in left_out(kind, True).values())


def test_hpcc_wrapper_copies_the_output_file_to_stdout(tmp_path: Path) -> None:
    program = tmp_path / "hpcc"
    program.write_text(f"""#!/bin/sh
test "$(sed -n 6p hpccinf.txt)" = 77 || exit 9
for text in '{hpcc.BEGIN}' '1 tests completed and passed residual checks' '{hpcc.END}'; do
  echo "$text" >>hpccoutf.txt
  sleep 0.1
done
echo AvgPingPongLatency_usec=2.5 >>hpccoutf.txt
echo RandomlyOrderedRingBandwidth_GBytes=0.5 >>hpccoutf.txt
exit 3
""")
    program.chmod(0o755)
    script = ["/bin/sh", "-c", hpcc.Problem(n=77).wrapper_script(str(program))]

    def run(**rank: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], **rank}
        return subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    done = run()
    assert done.returncode == 3 and done.stdout.count(hpcc.END) == 1
    (tmp_path / "shown").write_text(done.stdout)
    result = hpcc.read(tmp_path / "shown")
    assert result.passed == 1 and result.finished
    assert result.b_eff == pytest.approx({"ping_latency": 2.5e-6, "ring_bandwidth": 0.5e9})
    assert run(PMI_RANK="1").stdout == "", "only the first rank shows it"


def made_up_run(results: Results, combination: Combination, scale: int) -> Any:
    from wherry.lab.study.results import Run

    sizes = [float(2**power) for power in range(0, 24)] + [float(6 << 20)]
    values = [
        Value(f"latency_{name}", scale * (1e-6 + x * 1e-9), "s", x) for x in sizes for name in program_output.LATENCIES
    ]
    names = ("factor", "solve", "seconds", "rate", "downtime", "total", "bytes", "rounds", "rtt_mean", "result_crc")
    names += ("ping_latency", "ring_latency", "ring_bandwidth", "latency", "bandwidth", "throttled")
    names += ("first", "all", "seen", "freeze", "copy", "commit", "resume", "memcpy", "create", "join", "first_mean")
    names += ("observed", "memcpy_same", "overlap", "moves", "packed_after")
    names += ("turnaround_mean", "turnaround_worst", "waited", "split", "ran_cg")
    for name in names:
        values.append(Value(name, float(scale), "s"))
    return Run(results.next_number(), scale, False, True, combination, 0.0, 1.0, values=values)


def test_unknown_study_suggests_the_nearest_name() -> None:
    assert find("colocated").name == "colocated"
    with pytest.raises(Refused, match="no study colocate") as raised:
        find("colocate")
    assert "colocated" in raised.value.why


def test_too_few_runs_give_no_significance() -> None:
    assert significance_text([1, 2, 3], [4, 5, 6]) == "too few runs for a test"
    assert significance_text([1, 2, 3, 4], [5, 6, 7, 8]).startswith("differs")
    assert significance_text([1, 3, 5, 7], [2, 4, 6, 8]).startswith("no difference shown")


PING = """PING 10.77.1.2 (10.77.1.2) 16(44) bytes of data.

--- 10.77.1.2 ping statistics ---
10000 packets transmitted, {received} received, 0% packet loss, time 354ms
rtt min/avg/max/mdev = 0.012/0.016/0.139/0.006 ms, pipe 2, ipg/ewma 0.035/0.014 ms
"""


def test_program_outputs_are_parsed_and_malformed_ones_refused() -> None:
    values = program_output.flood_ping(PING.format(received=10000), 10000)
    assert ("rtt_mean", pytest.approx(16e-6)) == (values[1].metric, values[1].value)
    for text in (PING.format(received=9999), "ping: connect: Network is unreachable"):
        with pytest.raises(RunFailed):
            program_output.flood_ping(text, 10000)
    line = {"bytes": 1, "repeat": 100, "warm": 30, "mean": 2e-6, "median": 1e-6, "min": 1e-6, "p95": 3e-6, "max": 4e-6}
    good = json.dumps({**line, "errors": 0}) + "\n"
    assert Value("latency_median", 1e-6, "s", 1) in program_output.pingpong(good, 1)
    for text in ("", good + good, json.dumps({**line, "errors": 1}), good[:-9]):
        with pytest.raises(RunFailed):
            program_output.pingpong(text, 1)
    assert program_output.netpipe("       1 58.715596   0.00000013\n")[0] == Value("latency_mean", 1.3e-7, "s", 1.0)
    text = "  0:       1 bytes   7430 times -->      0.06 Mbps in     121.95 usec\n"
    assert program_output.netpipe_progress(f"1: vm\n{text}")[0] == Value(
        "latency_mean", pytest.approx(121.95e-6), "s", 1.0
    )
    with pytest.raises(RunFailed):
        program_output.netpipe_progress("0: vm\n")
    for text in ("", "1 2\n"):
        with pytest.raises(RunFailed):
            program_output.netpipe(text)
    with pytest.raises(RunFailed):
        program_output.linpack("dgetrf returned 3")
