"""Storage of a study: a directory with `study.json` (manifest, the value of every setting, environment), `samples.csv`
(all measured values), `runs/`.

Invariants: samples.csv is append-only, and a run is recorded atomically: its rows are appended at once and end with the
row `run`, without which it does not count. A failed run has that row only, with its problem. A run with a move whose
result differs from that of runs without a move does not count either; since this is known only when both exist, a later
row `judged` of the run overrides its `ok`. A reserve file is deleted on a full disk, so that the failure can still be
recorded. Readers write nothing; writers hold the lock. All sessions are from one machine with the same kernel and
libraries.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from wherry.base.errors import Code, Failed, Refused
from wherry.lab.environment import HOSTS_LOAD, SAME_MACHINE, changed_facts, environment, load
from wherry.lab.study.design import Design
from wherry.lab.study.levels import RESULT_CHECKSUM, Combination, Value
from wherry.lab.study.requirements import VM, vm_processor_text

D = TypeVar("D", bound=Design)
SCHEMA = "wherry/study/1"
_PLAIN: dict[str, Any] = {"paper": False, "settings": {}, "own_hosts": None}
"""Of studies of versions without settings, or own hosts. A record without `values` is of a version that kept the given
ones alone."""
_COLUMNS_BEFORE = ("run", "turn", "warmup", "ok")
_COLUMNS_AFTER = ("metric", "x", "value", "unit", "started", "load", "problem")
_RUN_ROW, _VERDICT_ROW = "run", "judged"
"""Metric names of a run's last row (value: total seconds), and of a later row that overrides its `ok`."""
_RESULT_DIFFERS = "its result is another than without a move"
_RESERVE = 4 << 20
"""Size of the reserve file in bytes: enough for a report with its figures."""
_LOAD = "load"
"""Fact of the environment that always varies."""


@dataclass
class Run:
    """A recorded run. `turn` is negative for a warm-up run."""

    number: int
    turn: int
    warmup: bool
    ok: bool
    combination: Combination
    started: float
    seconds: float = 0.0
    load: float = 0.0
    problem: str = ""
    values: list[Value] = field(default_factory=list)

    @property
    def result(self) -> float | None:
        """Checksum of the program's result, if it has one."""
        return next((value.value for value in self.values if value.metric == RESULT_CHECKSUM), None)

    @property
    def counts(self) -> bool:
        """True if its values may be used: it succeeded and is no warm-up run."""
        return self.ok and not self.warmup


class Results(Generic[D]):
    """The recorded runs of one study."""

    def __init__(self, directory: Path, study: D, manifest: dict[str, Any]) -> None:
        self.directory, self.study, self.manifest = directory, study, manifest
        self._factors = [factor.name for factor in study.factors()]
        self.runs: list[Run] = []
        self._by_combination: dict[Combination, list[Run]] = {}
        """Index of `runs`, because reports look up each of thousands of combinations many times."""
        self._recorded_ok: dict[int, bool] = {}
        """Number of a run -> its latest `ok` in samples.csv."""
        self._last_number = 0
        self._load_samples()

    @property
    def samples_file(self) -> Path:
        """The file with all values."""
        return self.directory / "samples.csv"

    @staticmethod
    def read_manifest(directory: Path) -> dict[str, Any]:
        """Reads study.json. Raises NOT_FOUND if the directory has none."""
        try:
            manifest: dict[str, Any] = json.loads((directory / "study.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            what = f"{directory} is not the directory of a study"
            raise Refused(Code.NOT_FOUND, what, "it has no study.json", "wherry study run NAME --out DIR") from None
        except (OSError, ValueError) as error:
            raise Refused(Code.INVALID_FILE, f"{directory / 'study.json'} cannot be read", str(error)) from None
        if manifest.get("schema") != SCHEMA:
            why = f"its schema is {manifest.get('schema')!r}, this version reads {SCHEMA!r}"
            raise Refused(Code.INVALID_FILE, f"{directory / 'study.json'} cannot be read", why)
        return manifest

    @staticmethod
    def create(directory: Path, study: D, repetitions: int, versions: Mapping[str, str] | None = None) -> Results[D]:
        """Creates or opens the results in a directory. Refused if it holds another study, or one of another machine;
        `versions` are additional facts of this machine's environment."""
        request = {"study": study.name, "quick": study.quick, "seed": study.seed}
        request |= {"paper": study.paper, "settings": study.given}
        request |= {"own_hosts": study.own_hosts and study.own_hosts.fabric(study.used_hosts())}
        values = study.values()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with _directory_lock(directory):
                if (directory / "study.json").exists():
                    manifest = Results.read_manifest(directory)
                    existing = {**_PLAIN, **{key: manifest[key] for key in request if key in manifest}}
                    if existing != request:
                        why = f"it holds {_study_text(existing)}, this is {_study_text(request)}"
                        raise Refused(Code.NAME_TAKEN, f"{directory} holds another study", why, "choose another --out")
                    _require_same_values(directory, manifest.get("values", {}), values)
                else:
                    manifest = {"schema": SCHEMA, **request, "values": values}
                    manifest |= {"lacks": study.unavailable, "sessions": []}
                manifest["repetitions"] = max(repetitions, manifest.get("repetitions", 0))
                results = Results(directory, study, manifest)
                results._require_same_machine({**environment(), **(versions or {})})
                results._truncate_torn_line()
                results._allocate_reserve()
                results.save()
        except OSError as error:
            raise Refused(Code.FAILED, f"{directory} cannot be written", str(error), "choose another --out") from None
        return results

    @contextmanager
    def session(self, versions: Mapping[str, str] | None = None) -> Iterator[None]:
        """Holds the directory's lock during a session and records the environment before (with `versions`) and after
        it. Refused if earlier sessions were on another machine."""
        with _directory_lock(self.directory):
            session: dict[str, Any] = {"started": time.time(), "before": {**environment(), **(versions or {})}}
            self._require_same_machine(session["before"])
            self.manifest["sessions"].append(session | {"after": {}})
            self.save()
            try:
                yield
            finally:
                self.manifest["sessions"][-1] |= {"ended": time.time(), "after": {_LOAD: load()}}
                self._with_reserve(self.save)

    def _require_same_machine(self, now: Mapping[str, str]) -> None:
        """Refuses a changed machine, because its samples would be mixed into the same medians."""
        for session in self.manifest["sessions"]:
            if changed := changed_facts(session["before"], now):
                what = f"{self.directory} was begun on another machine, or on this one before it was changed"
                after = "choose another --out, then: wherry study compare OLD NEW"
                raise Refused(Code.WRONG_STATE, what, "; ".join(changed), after)

    def machine_facts(self) -> dict[str, list[str]]:
        """Facts of the environment -> texts; more than one if the fact changed between sessions."""
        existing = {"virtual machines": [vm_processor_text(self.manifest["lacks"])]} if self._uses_vms() else {}
        for session in self.manifest["sessions"]:
            for key, text in session["before"].items():
                if key not in (_LOAD, HOSTS_LOAD) and text not in existing.setdefault(key, []):
                    existing[key].append(text)
        if fabric := self.manifest.get("fabric"):
            existing["fabric"] = ["; ".join(fabric)]
        return existing

    def _uses_vms(self) -> bool:
        """True if a run on VMs counts, or if VMs are unavailable."""
        without = self.study.lacking(**{VM: "none"}).combinations()
        return VM in self.study.unavailable or any(run.combination not in without for run in self.counted())

    def sessions_with_runs(self) -> int:
        """Number of sessions with runs that count."""
        begun = [session["started"] for session in self.manifest["sessions"]]
        return len({bisect_right(begun, run.started) for run in self.counted()})

    def save(self) -> None:
        """Writes study.json atomically."""
        new = self.directory / "study.json.new"
        new.write_text(json.dumps(self.manifest, indent=1))
        os.replace(new, self.directory / "study.json")

    def add_fact(self, fact: str, texts: Sequence[str]) -> None:
        """Adds texts to a fact of the manifest, without duplicates."""
        kept = self.manifest.setdefault(fact, [])
        kept += [text for text in texts if text not in kept]
        self._with_reserve(self.save)

    def add(self, run: Run) -> None:
        """Appends a run with the current load. On a full disk it raises Failed and appends nothing."""
        run.load = os.getloadavg()[0]
        self._append(self._csv_rows(run))
        self._recorded_ok[run.number] = run.ok
        self._index_run(run)
        self._check_results()
        for other in self.runs:
            if other.ok != self._recorded_ok[other.number]:
                with suppress(Failed):  # the disk is full: retried after the next run
                    self._append(self._csv_rows(other, verdict=True))
                    self._recorded_ok[other.number] = other.ok

    def _index_run(self, run: Run) -> None:
        self.runs.append(run)
        self._by_combination.setdefault(run.combination, []).append(run)

    def _append(self, text: str) -> None:
        end = self.samples_file.stat().st_size
        try:
            with self.samples_file.open("a") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            os.truncate(self.samples_file, end)
            raise Failed(
                Code.FAILED, f"{self.samples_file} cannot be written", str(error), "make room there"
            ) from error

    def add_failed(self, run: Run) -> None:
        """Appends a failed run, with the space of the reserve if necessary."""
        run.ok, run.values = False, []
        self._with_reserve(lambda: self.add(run))

    def refill_reserve(self) -> None:
        """Allocates the reserve again if it was used and there is space."""
        with suppress(OSError):
            self._allocate_reserve()

    def release_reserve(self) -> None:
        """Deletes the reserve."""
        (self.directory / ".reserve").unlink(missing_ok=True)

    def directory_of(self, run: Run) -> Path:
        """Directory with the run's command and output."""
        return self.directory / "runs" / f"{run.number:04d}-{'-'.join(level for _, level in run.combination.levels)}"

    def next_number(self) -> int:
        """An unused run number."""
        self._last_number += 1
        return self._last_number

    def completed(self) -> set[tuple[int, Combination]]:
        """(turn, combination) of all runs that count."""
        return {(run.turn, run.combination) for run in self.runs if run.counts}

    def counted(self, combination: Combination | None = None) -> list[Run]:
        """Runs that count, of one combination or of all."""
        return [
            run
            for run in (self.runs if combination is None else self._by_combination.get(combination, []))
            if run.counts
        ]

    def failed(self) -> list[Run]:
        """Failed runs, which do not count."""
        return [run for run in self.runs if not run.ok]

    def values(self, combination: Combination, metric: str, x: float | None = None) -> list[float]:
        """The value of a metric from each run that counts and has it."""
        return [v.value for run in self.counted(combination) for v in run.values if (v.metric, v.x) == (metric, x)]

    def xs(self, combination: Combination, metric: str) -> list[float]:
        """The x values at which a metric was measured, ascending."""
        existing = {
            v.x for run in self.counted(combination) for v in run.values if v.metric == metric and v.x is not None
        }
        return sorted(existing)

    def _columns(self) -> list[str]:
        return [*_COLUMNS_BEFORE, *self._factors, *_COLUMNS_AFTER]

    def _complete_lines(self) -> str:
        """The complete lines of samples.csv; empty if it does not exist."""
        try:
            data = self.samples_file.read_bytes()
            return data[: data.rfind(b"\n") + 1].decode()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise Refused(Code.INVALID_FILE, f"{self.samples_file} cannot be read", str(error)) from None

    def _truncate_torn_line(self) -> None:
        """Creates samples.csv, or truncates an incomplete last line (power failure), whose run does not count."""
        whole = self._complete_lines().encode()
        if not whole:
            self.samples_file.write_text(",".join(self._columns()) + "\n")
        elif len(whole) < self.samples_file.stat().st_size:
            os.truncate(self.samples_file, len(whole))

    def _load_samples(self) -> None:
        text, head = self._complete_lines(), self._columns()
        if not text:
            return
        reader = csv.DictReader(io.StringIO(text))
        if list(reader.fieldnames or ()) != head:
            why = f"its columns are {','.join(reader.fieldnames or ())}, this version writes {','.join(head)}"
            raise Refused(Code.INVALID_FILE, f"{self.samples_file} is of another version", why, "choose another --out")
        values: list[Value] = []
        for row in reader:
            if row["metric"] == _VERDICT_ROW:
                self._recorded_ok[int(row["run"])] = row["ok"] == "1"
                continue
            if int(row["run"]) != self._last_number:  # also after an incomplete run, whose number is not reused
                self._last_number, values = int(row["run"]), []
            if row["metric"] != _RUN_ROW:
                values.append(Value(row["metric"], float(row["value"]), row["unit"], _number(row["x"])))
                continue
            self._index_run(self._parse_run(row, values))
            self._recorded_ok[self._last_number] = self.runs[-1].ok
        self._check_results()

    def _check_results(self) -> None:
        """Fails runs whose result differs from that of runs without a move, as soon as there is one of these."""
        for run in self.runs:
            unmoved = self.study.without_move(run.combination) if run.problem in ("", _RESULT_DIFFERS) else None
            if unmoved and (expected := set(self.values(unmoved, RESULT_CHECKSUM))):
                run.ok = run.result in (None, *expected)
                run.problem = "" if run.ok else _RESULT_DIFFERS

    def _parse_run(self, row: dict[str, str], values: list[Value]) -> Run:
        return Run(
            number=int(row["run"]),
            turn=int(row["turn"]),
            warmup=row["warmup"] == "1",
            ok=row["ok"] == "1",
            combination=Combination(tuple((factor, row[factor]) for factor in self._factors)),
            started=float(row["started"]),
            seconds=float(row["value"]),
            load=float(row["load"]),
            problem=row["problem"],
            values=values,
        )

    def _csv_rows(self, run: Run, verdict: bool = False) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        before = [
            run.number,
            run.turn,
            int(run.warmup),
            int(run.ok),
            *(run.combination[name] for name in self._factors),
        ]
        after = [f"{run.started:.3f}", f"{run.load:.2f}", " ".join(run.problem.split())]
        last = Value(_VERDICT_ROW if verdict else _RUN_ROW, run.seconds, "s")
        for value in [last] if verdict else [*run.values, last]:
            x = "" if value.x is None else f"{value.x:.10g}"
            writer.writerow([*before, value.metric, x, f"{value.value:.12g}", value.unit, *after])
        return out.getvalue()

    def _allocate_reserve(self) -> None:
        reserve = self.directory / ".reserve"
        if reserve.exists():
            return
        try:
            with reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVE)
        except OSError:
            reserve.unlink(missing_ok=True)
            raise

    def _with_reserve(self, write: Any) -> None:
        try:
            write()
        except (OSError, Failed):
            self.release_reserve()
            write()


@contextmanager
def _directory_lock(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another run of this study works in {directory}"
            raise Refused(Code.WRONG_STATE, what, "", "wait for it, or choose another --out") from None
        try:
            yield
        finally:
            (directory / ".lock").unlink()


def _number(text: str) -> float | None:
    return float(text) if text else None


def _require_same_values(directory: Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses other values than the recorded ones: they are the defaults of another version."""
    changed = [
        f"{name} = {value} there, {now[name]} here" for name, value in recorded.items() if now.get(name, value) != value
    ]
    if changed:
        raise Refused(Code.NAME_TAKEN, f"{directory} holds another study", "; ".join(changed), "choose another --out")


def _study_text(request: dict[str, Any]) -> str:
    words = [request["study"], *(["--quick"] if request["quick"] else []), *(["--paper"] if request["paper"] else [])]
    words += [f"--set {name}={value}" for name, value in request["settings"].items()]
    if own := request["own_hosts"]:
        words.append(f"--fabric on {', '.join(host['uri'] for host in own['hosts'])}")
    return f"{' '.join(words)} (seed {request['seed']})"


def counts_table(results: Results) -> Sequence[tuple[str, str, str, str]]:
    """Rows of: combination, counted runs, failed runs, median seconds."""
    rows = []
    for combination in results.study.combinations():
        runs = results.counted(combination)
        failed = sum(run.combination == combination for run in results.failed())
        seconds = sorted(run.seconds for run in runs)
        typical = f"{seconds[len(seconds) // 2]:.1f}" if seconds else "-"
        rows.append((str(combination), str(len(runs)), str(failed), typical))
    return rows


def own_hosts_text(results: Results) -> str:
    """On which hosts of the user a study was made; that they are emulated where it has none."""
    own = results.study.own_hosts
    if own is None:
        return "emulated hosts of one machine"
    names = ", ".join(host.name for host in own.first(results.study.used_hosts()))
    shared = any(SAME_MACHINE in text for texts in results.machine_facts().values() for text in texts)
    return f"hosts of the user's own ({names}){', several of them on one machine' if shared else ''}"
