"""Real studies: a quick one from the command line, and failing runs on a testbed. A node killed during a run, a wrong
number of ranks and a full disk each fail the run, which is recorded and not counted, and the study continues."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from names import own_name
from wherry.base.errors import Failed
from wherry.base.paths import Instance
from wherry.client import daemon_process
from wherry.lab.study import gateways, render, runner, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, RunFailed, Value
from wherry.lab.study.papers import nic_counts
from wherry.lab.study.papers.multi_site import MultiSite
from wherry.lab.study.papers.multi_site_design import combination_of as in_multi_site
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.requirements import unavailable_features
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import FABRIC, ClusterShape, Testbed, program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

WHERRY = Path(sys.executable).parent / "wherry"
INSTANCE = own_name("tstu")
FEW = tuple(word for name in ("=5", ".warm=2", ".few=2") for word in ("--set", f"exchanges{name}"))
PLACE = ClusterShape("fault", 2, ("a1", "a2"), cpus=0.5, memory="128MiB")


def wherry(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    return subprocess.run(
        [str(WHERRY), *words],
        cwd=cwd,
        env={**inherited, "WHERRY_INSTANCE": INSTANCE},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


@pytest.fixture(scope="module")
def case() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wherry-tstudy-") as directory:
        yield Path(directory)
        down = wherry("down", "--all", "--yes", cwd=Path(directory))
        assert down.returncode == 0, down.stderr


@pytest.fixture(scope="module")
def study(case: Path) -> subprocess.CompletedProcess[str]:
    """The command that ran a quick study in the directory `study`."""
    words = ("--quick", "--reps", "1", *FEW, "--out", "study")
    return wherry("study", "run", "colocated", *words, "-o", "json", cwd=case)


@pytest.mark.smoke
def test_quick_study_runs_from_the_command_line(case: Path, study: subprocess.CompletedProcess[str]) -> None:
    assert study.returncode == 0, study.stderr
    document = json.loads(study.stdout)
    assert (document["counted"], document["failed"], document["missing"]) == (5, 0, 0)
    assert "left" in study.stderr

    with (case / "study" / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    places = {"native-shm", "native-tcp", "one-node", "one-host", "two-hosts"}
    assert {row["where"] for row in rows} == places and {row["ok"] for row in rows} == {"1"}
    for cluster in places:
        sizes = {float(row["x"]) for row in rows if row["where"] == cluster and row["metric"] == "latency_median"}
        assert sizes == {float(2**power) for power in range(24)} | {float(6 << 20)}
    text = (case / "study" / "report.html").read_text()
    for part in ("180 / 1200", "two VM nodes on one host", "cannot say", "Figures 3 and 4", "<svg", "lapack"):
        assert part in text
    assert (case / "study" / "report.pdf").read_bytes().startswith(b"%PDF")
    clusters = json.loads(wherry("status", "-o", "json", cwd=case).stdout)
    assert clusters["clusters"] == []


def test_a_study_is_reported_again_and_compared(case: Path, study: subprocess.CompletedProcess[str]) -> None:
    text = (case / "study" / "report.html").read_text()
    again = wherry("study", "report", "study", cwd=case)
    assert again.returncode == 0 and (case / "study" / "report.html").read_text() == text
    same = json.loads(wherry("study", "compare", "study", "study", "-o", "json", cwd=case).stdout)
    assert same["differences"] and all(one["ratio"] == 1 for one in same["differences"])
    refused = wherry("study", "run", "nic-degradation", "--out", "study", cwd=case)
    assert refused.returncode == 4 and "holds another study" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_report_progress_and_take_everything_down(case: Path, number: signal.Signals) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    words = [str(WHERRY), "study", "run", "nic-degradation", "--quick", "--out", "cut"]
    child = subprocess.Popen(
        words, cwd=case, env={**inherited, "WHERRY_INSTANCE": INSTANCE}, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stderr
        document = child.stderr.readline()
        child.send_signal(number)
        document += child.stderr.read()
    assert child.returncode == 128 + number, document
    assert "error CANCELLED: interrupted: " in document and "Traceback" not in document
    assert "wherry study run nic-degradation --quick --out cut" in document
    assert "runs are missing" in (case / "cut" / "report.html").read_text()
    assert json.loads((case / "cut" / "study.json").read_text())["sessions"][0]["before"]["criu"]
    assert not Instance(INSTANCE).run.exists() and not Instance(INSTANCE).state.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/wherry-{INSTANCE}"))


def test_a_cluster_of_ec2_is_measured(case: Path) -> None:
    """By botocore over TLS, as an account; nothing of it is left."""
    given = [word for one in ("clusters=ec2", "nics=container", "largest=1KiB") for word in ("--set", one)]
    words = ("--quick", "--reps", "1", *given, "--out", "cloud")
    done = wherry("study", "run", "nic-degradation", *words, "-o", "json", cwd=case)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counted"] == 1
    commands = [file.read_text() for file in (case / "cloud" / "runs").glob("*container*/command")]
    assert len(commands) == 1 and " run ec2-" in commands[0] and "/var/tmp/" in commands[0]
    assert "through the EC2 Query API by botocore" in (case / "cloud" / "report.html").read_text()
    assert not Instance(INSTANCE).run.exists() and not Instance(INSTANCE).state.exists()


MeasureRun = Callable[[Testbed, Path], list[Value]]


class Faults(Study):
    """A study with one combination whose run is defined by the test."""

    name = "faults"
    title = "Faults"
    question = "What happens then?"
    measure_run: MeasureRun

    def factors(self) -> Sequence[Factor]:
        return [Factor("what", "what", (Level("it", "it"),))]

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(what="it")]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        return self.measure_run(testbed, directory)

    def page(self, results: Results) -> Page:
        return Page()


def results_of(directory: Path, measure_run: MeasureRun, repetitions: int) -> Results:
    study = Faults(quick=True)
    study.measure_run = measure_run  # type: ignore[method-assign]
    return Results.create(directory, study, repetitions)


def run(results: Results, testbed: Any) -> None:
    with results.session():
        runner.run(results, testbed, lambda *_: None)


@pytest.fixture
def testbed(case: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    monkeypatch.setenv("WHERRY_INSTANCE", INSTANCE)
    created = Testbed(case)
    yield created
    created.close()


def first_process(node: str) -> int:
    """PID on this machine of the node's init process."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if node in (entry / "cgroup").read_text() and INSTANCE in (entry / "cgroup").read_text():
                last = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("NSpid"))
                if last.split()[-1] == "1":
                    return int(entry.name)
        except (OSError, StopIteration):
            continue
    raise AssertionError(f"no init of {node}")


def test_node_lost_during_a_run_fails_the_run_and_is_repaired(case: Path, testbed: Testbed) -> None:
    kills = [1]

    def measure_run(testbed: Testbed, directory: Path) -> list[Value]:
        testbed.ensure_cluster(PLACE)
        if kills:
            kills.pop()
            timer = threading.Timer(2.0, lambda: os.kill(first_process("fault-1"), signal.SIGKILL))
            timer.start()
        return workloads.ring(testbed, PLACE, 1, 4.0, 2, directory)

    results = results_of(case / "lost", measure_run, 2)
    run(results, testbed)
    assert len(results.failed()) == 1 and len(results.counted()) == 1, [run.problem for run in results.runs]
    assert results.failed()[0].problem
    assert results.failed()[0].problem[:20] in render.write(results)[0].read_text()


def test_wrong_ranks_too_large_class_and_hang_fail_their_runs(case: Path, testbed: Testbed) -> None:
    def ranks(testbed: Testbed, directory: Path) -> list[Value]:
        done = testbed.run_on_cluster(PLACE, [program("pingpong", "openmpi"), "--max", "1"], 3, directory, 60.0)
        done.require_success()
        return []

    def hang(testbed: Testbed, directory: Path) -> list[Value]:
        testbed.run_on_cluster(PLACE, ["/bin/sleep", "100"], 1, directory, 2.0, "openmpi")
        return []

    def npb_ranks(testbed: Testbed, directory: Path) -> list[Value]:
        return workloads.npb(testbed, PLACE, "sp", "S", 3, directory)

    def npb_class(testbed: Testbed, directory: Path) -> list[Value]:
        return workloads.npb(testbed, PLACE, "ft", "C", 2, directory)

    for name, measure_run, expected in (
        ("ranks", ranks, "exactly two ranks"),
        ("npb-ranks", npb_ranks, "runs on 1, 4, 9, 16, ... processes, not on 3"),
        ("npb-class", npb_class, "class C needs 3.0 GiB where rank 0 runs, and there are 0.1 GiB"),
        ("hang", hang, "within 2 s"),
    ):
        results = results_of(case / name, measure_run, 1)
        run(results, testbed)
        assert not results.counted() and expected in results.failed()[0].problem, results.failed()[0].problem


def test_events_of_messages_are_counted_natively_and_between_containers(case: Path, testbed: Testbed) -> None:
    """Over a pair of veth a large message is many frames; only events of messages are counted."""
    study, counted = NicDegradation(True, given={"counted": "40"}), {}
    for nic in ("native", "container"):
        directory = case / f"counts-{nic}"
        directory.mkdir()
        values = study.measure(testbed, nic_counts.combination(nic), directory)
        counted[nic] = {(value.metric, value.x): value.value for value in values}
    for found in counted.values():
        # A rank reads its counters when it has the last message, which may be before that one's frame is counted.
        assert found["count_frames", 1] >= 0.95 and found["count_bytes", 65536] >= 65536
        assert ("count_card_interrupts", 1) not in found and found["latency_median", 1] > 0
        assert ("count_softirqs", 1) not in found, "they are of the whole machine"
    assert counted["container"]["count_messages", 1] == 40
    assert counted["native"]["count_frames", 1] < 2, "both ranks count one loopback"


def test_run_that_needs_more_memory_than_available_fails(case: Path, testbed: Testbed) -> None:
    with pytest.raises(RunFailed, match="of memory"):
        testbed.require_memory(1 << 50)


@pytest.fixture
def small_disk(case: Path) -> Iterator[Path]:
    path = case / "disk"
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)], check=True)
    yield path
    for _ in range(10):
        if subprocess.run(["umount", str(path)], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.5)
    raise AssertionError("the small disk stays mounted")


def test_full_disk_fails_runs_and_leaves_a_report(small_disk: Path, testbed: Testbed) -> None:
    fills: list[int] = [0, 0, 1, 1, 1, 1, 1]

    def measure_run(_bench: Testbed, directory: Path) -> list[Value]:
        if fills.pop(0):
            (directory / "big").write_bytes(bytes(16 << 20))
        return [Value("seconds", 1.0, "s")]

    results = results_of(small_disk / "study", measure_run, 7)
    with pytest.raises(Failed, match="in a row failed"):
        run(results, testbed)
    results.release_reserve()
    text = render.write(results)[0].read_text()
    assert len(results.counted()) == 2 and len(results.failed()) == 5
    assert "No space left on device" in text and "5 of 7 runs are missing" in text
    inherited = Results(results.directory, results.study, Results.read_manifest(results.directory))
    assert len(inherited.counted()) == 2 and len(inherited.failed()) == 5


def test_repeatedly_full_disk_loses_no_row(small_disk: Path, testbed: Testbed) -> None:
    """Each row is longer than a page, so it needs a new block, while another program fills and frees the disk."""
    other = small_disk / "other"
    turns = iter(range(8))

    def fill() -> None:
        with other.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()

    def measure_run(_bench: Testbed, directory: Path) -> list[Value]:
        if next(turns) % 2:
            other.unlink()
            return [Value("seconds", 1.0, "s")]
        try:
            fill()
        except OSError as error:
            raise RunFailed(f"{error} {'x' * 5000}") from None
        return []

    results = results_of(small_disk / "study", measure_run, 8)
    run(results, testbed)
    assert (len(results.counted()), len(results.failed())) == (4, 4)
    inherited = Results(results.directory, results.study, Results.read_manifest(results.directory))
    assert [one.ok for one in inherited.runs] == [False, True] * 4


class Papers(XenMigration):
    """Each program on nodes; HPL and SP with a move, SP also without."""

    def combinations(self) -> Sequence[Combination]:
        runs = (("linpack", "nodes"), ("netpipe", "two-hosts"), ("idle", "moved"))
        moved = (("hpl3", "moved"), ("sp", "nodes"), ("sp", "moved"))
        return [Combination.of(test=test, how=how) for test, how in (*runs, *moved)]


class Pings(NicDegradation):
    """Flood pings between nodes."""

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(nic="container", tool="flood", mpi="openmpi")]


@pytest.mark.parametrize("kind", [Papers, Pings])
def test_programs_of_the_studies_run_on_a_cluster(case: Path, testbed: Testbed, kind: type[Study]) -> None:
    results = Results.create(case / kind.__name__, kind(True, unavailable_features(daemon_process.examine())), 1)
    run(results, testbed)
    assert len(results.counted()) == len(results.study.combinations()), [one.problem for one in results.runs]
    moved = [cell for cell in results.study.combinations() if "moved" in dict(cell.levels).values()]
    assert all(results.values(cell, "downtime")[0] > 0 for cell in moved)
    text = render.write(results)[0].read_text()
    assert kind is not Papers or "wherry move three-2 --to a" in text


class TwoSites(MultiSite):
    """A minimal subset: one program natively and on nodes of limited hosts, over a link of 10 ms with a VPN; by MPICH;
    on more ranks of one site, or at two; and messages over the VPN."""

    def vpn(self) -> str:
        return next((name for name in ("openvpn", "wireguard") if name not in self.unavailable), "none")

    def combinations(self) -> Sequence[Combination]:
        over = ("two", self.vpn(), "10")
        return [
            *(in_multi_site(test, how, *over) for test in ("ep", "ep-mpich") for how in ("native", "nodes")),
            *(
                in_multi_site("cg", how, where)
                for how in ("native", "nodes")
                for where in self.factors()[2].measured()[1:2]
            ),
            in_multi_site("netpipe", "nodes", "two", self.vpn()),
        ]


def test_multi_site_programs_run_over_two_sites(case: Path, testbed: Testbed) -> None:
    results = Results.create(case / "sites", TwoSites(True, unavailable_features(daemon_process.examine())), 1)
    try:
        run(results, testbed)
    finally:
        testbed.close()
        testbed.use_fabric(FABRIC)
    study = results.study
    assert len(results.counted()) == len(study.combinations()), [one.problem for one in results.failed()]
    *npb, pipe = study.combinations()
    for combination in npb:
        assert results.values(combination, "seconds") and results.values(combination, "throttled")[0] >= 0
    assert results.values(pipe, gateways.SOFTIRQ)
    if study.vpn() == "openvpn":
        shares = [results.values(pipe, gateways.GATEWAY, x)[0] for x in results.xs(pipe, gateways.GATEWAY)]
        assert shares and all(0 < share < 1.1 for share in shares), "messages of a MiB last long enough"
    text = render.write(results)[0].read_text()
    assert all(title in text for title in ("NPB on limited hosts", "MPICH beside Open MPI", "Gateways, link and"))
