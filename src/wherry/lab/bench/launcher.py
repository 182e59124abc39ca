"""`launcher`: behaviour of mpirun that people who run MPI jobs rely on, beside the same words by `wherry run`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.client import Client, identity
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.launcher_rows import PROLOGUE, ROWS, Experiment
from wherry.lab.bench.samples import Samples
from wherry.lab.native_mpirun import LAUNCHERS
from wherry.lab.report.page import Table

_CLUSTER = "launcher"
_SECONDS = 20
"""How long a script may run: it takes two, and endless waits are of several MPIs."""
_HANGS = "does not end"
_SOURCES = Path(__file__).parent
_PROGRAMS = {"rank": ("launcher_rank.c",), "loads": ("launcher_loads.c", "-Wl,--as-needed", "-ldl")}
_VERSIONS = {
    "Open MPI": re.compile(r"\((?:Open MPI|OpenRTE|PRRTE)\) ([\d.]+)"),
    "MPICH": re.compile(r"HYDRA build details:\s+Version:\s+([\d.]+)"),
}
_ALL = Goal(at_least=1)


@dataclass(frozen=True)
class Launcher(Benchmark):
    """One run is one row under one MPI: a script of a few lines, first with the MPI's own launcher on this machine,
    then with `wherry run` on two container nodes at different hosts. Nothing is timed.
    """

    name = "launcher"
    compares = "How mpirun and wherry run handle signals, streams, environment, limits and exit codes: rows that agree"
    duration = ("five minutes for each MPI", "a minute for each MPI")
    columns = ("agree", "-")
    repetitions = 1
    quick_repetitions = 1
    quick_settings = {"rows": ",".join(row.name for row in ROWS if row.quick)}  # noqa: RUF012
    keeps_clusters = True
    remarks = (
        "Natively all ranks are on one machine, with wherry run on two nodes, where an MPI may do otherwise by itself.",
    )

    mpis: str = ",".join(LAUNCHERS.values())
    """Launchers by name or path, or directories that have one (the `bin` of an installation). Missing ones are
    left out."""
    rows: str = ",".join(row.name for row in ROWS)

    def __post_init__(self) -> None:
        if unknown := set(self.rows.split(",")) - {row.name for row in ROWS}:
            raise ValueError(f"no row {', '.join(sorted(unknown))}; there are: {', '.join(row.name for row in ROWS)}")

    def levels(self) -> Sequence[Levels]:
        mpis = dict.fromkeys(self.mpis.split(","))
        there = [{"mpi": mpi, "row": row} for mpi in mpis if not _absent(mpi) for row in self.rows.split(",")]
        return [*({"mpi": mpi, "row": ""} for mpi in mpis if _absent(mpi)), *there]

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        if absent := _absent(levels["mpi"]):
            yield {"skipped": absent}
            return
        launcher = _launcher(levels["mpi"])
        programs = _compiled(launcher, directory)
        if all(cluster["name"] != _CLUSTER for cluster in client.clusters()):
            spec = {"name": _CLUSTER, "nodes": 2, "cpus": 0.5, "memory": "512MiB", "placement": "spread"}
            client.wait(client.up(spec, "the benchmark's cluster", identity.process_owner(directory)).id)
        (row,) = (row for row in ROWS if row.name == levels["row"])
        version = _version(launcher)
        as_root = ["--allow-run-as-root", "--oversubscribe"] if version.startswith("Open MPI") else []
        ours = str(Path(sys.executable).with_name("wherry"))
        native = _said(row, [str(launcher), *as_root], programs, directory / "native")
        wherry = _said(row, [ours, "run", _CLUSTER, "--mpi", str(launcher)], programs, directory / "wherry")
        for job in client.jobs(_CLUSTER):
            if job.state.under_way:
                client.cancel_job(job.id)
        reason = "" if native == wherry else row.reason(version, wherry)
        yield {"version": version, "native": native, "wherry": wherry, "same": native == wherry, "reason": reason}

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for mpi in self.mpis.split(","):
            found = [row for row in samples.good(mpi=mpi) if "same" in row]
            agree = [sum(bool(row["same"] or row["reason"]) for row in found) / len(found)] if found else []
            rows.append(Comparison(f"{_title(found, mpi)}: part that agrees or differs on purpose", agree, goal=_ALL))
        return rows

    def tables(self, samples: Samples) -> Sequence[Table]:
        made = []
        for mpi in self.mpis.split(","):
            found = [row for row in samples.good(mpi=mpi) if "same" in row]
            rows = [self._cells(row, [one for one in found if one["row"] == row.name]) for row in ROWS]
            if any(rows):
                head = ("", "mpirun", "wherry run", "the same", "why not")
                made.append(Table(_title(found, mpi), head, [row for row in rows if row]))
        if skipped := [(row["mpi"], row["skipped"]) for row in samples.good() if "skipped" in row]:
            made.append(Table("Left out", ("MPI", "why"), skipped))
        return made

    def _cells(self, row: Experiment, found: Sequence[Row]) -> tuple[str, ...]:
        if not found:
            return ()
        native, wherry, reasons = (" or ".join(dict.fromkeys(one[key] for one in found)) for key in _TEXTS)
        same = all(one["same"] for one in found)
        meant = all(one["same"] or one["reason"] for one in found)
        return row.title, native, wherry, "yes" if same else "on purpose" if meant else "NO", "" if same else reasons

    def describe_sample(self, row: Row) -> str:
        if "skipped" in row:
            return f"left out: {row['skipped']}"
        return "the same" if row["same"] else f"natively {row['native']!r}, by wherry run {row['wherry']!r}"


_TEXTS = ("native", "wherry", "reason")


def _title(found: Sequence[Row], mpi: str) -> str:
    return str(found[0]["version"]) if found else mpi


def _absent(mpi: str) -> str:
    """Why an MPI cannot be looked at; empty if it can."""
    launcher = _found(mpi)
    if launcher is None:
        return f"there is no launcher {mpi}"
    return "" if os.access(_compiler(launcher), os.X_OK) else f"there is no {_compiler(launcher).name} beside {mpi}"


def _found(mpi: str) -> Path | None:
    names = ("mpirun", "mpiexec", *LAUNCHERS.values())
    candidates = [str(Path(mpi) / name) for name in names] if Path(mpi).is_dir() else [mpi]
    found = next(filter(None, map(shutil.which, candidates)), None)
    return Path(found).absolute() if found else None


def _launcher(mpi: str) -> Path:
    launcher = _found(mpi)
    assert launcher is not None, mpi
    return launcher


def _compiler(launcher: Path) -> Path:
    return launcher.with_name(re.sub("mpi(run|exec)", "mpicc", launcher.name))


def _version(launcher: Path) -> str:
    done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=60, check=False)
    for name, pattern in _VERSIONS.items():
        if match := pattern.search(done.stdout):
            return f"{name} {match[1]}"
    raise Failed(Code.FAILED, f"{launcher} is of no known MPI", done.stdout[:200], "")


def _compiled(launcher: Path, directory: Path) -> Sequence[Path]:
    """The programs, compiled once by the MPI's own compiler."""
    made = directory / "programs" / str(launcher).strip("/").replace("/", "-")
    made.mkdir(parents=True, exist_ok=True)
    for name, (source, *options) in _PROGRAMS.items():
        if not (made / name).exists():
            words = [str(word) for word in (_compiler(launcher), "-o", made / name, _SOURCES / source, *options)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                raise Failed(Code.FAILED, f"{source} cannot be compiled by {words[0]}", done.stderr[-500:], "")
    return [made / name for name in _PROGRAMS]


def _said(row: Experiment, launcher: Sequence[str], programs: Sequence[Path], directory: Path) -> str:
    """The output of a row's script in a directory of its own, of which no process is left."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for program in programs:
        os.link(program, directory / program.name)
    natively = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    child = subprocess.Popen(
        ["bash", "-c", PROLOGUE + row.script, row.name, *launcher],
        cwd=directory, env=os.environ if launcher[1:2] == ["run"] else natively, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        output = child.communicate(timeout=_SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        output = _HANGS
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        _end_programs_of(directory)
        child.communicate()
    return "; ".join(" ".join(line.split()) for line in output.splitlines() if line.strip()) or "nothing"


def _end_programs_of(directory: Path) -> None:
    """Kills programs that run from the directory, on nodes too."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "exe").readlink().is_relative_to(directory):
                os.kill(int(process.name), signal.SIGKILL)
