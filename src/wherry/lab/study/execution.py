"""Executes a study in an instance of its own: remaining runs, report, clean-up.

Invariant: however it ends, the report of completed runs is written and nothing of the study is left running.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance, as_root, instance
from wherry.client import daemon_process, identity
from wherry.lab.sole_use import sole_use
from wherry.lab.study import host_probe, render, runner
from wherry.lab.study.catalog import find
from wherry.lab.study.counts import option_of
from wherry.lab.study.experiment import Study
from wherry.lab.study.own_hosts import OwnHosts
from wherry.lab.study.requirements import unavailable_features, versions
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed
from wherry.model.spec.fabric import HostSpec

_INSTANCE = "study"


def run(
    name: str,
    *,
    quick: bool,
    out: Path | None,
    repetitions: int | None,
    keep: bool,
    on_progress: runner.ProgressCallback,
    settings: Mapping[str, str] | None = None,
    paper: bool = False,
    own_hosts: OwnHosts | None = None,
) -> tuple[Results[Study], list[Path]]:
    """Makes the remaining runs of a study, on emulated hosts or `own_hosts`, and returns its results and the report's
    files. Refused (USAGE) for settings that are none of the study."""
    kind = find(name)
    if quick and paper:
        raise Refused(Code.USAGE, "--quick and --paper exclude each other", "", f"wherry study run {name} --paper")
    asked = kind(quick, given=settings, paper=paper, own_hosts=own_hosts)
    if repetitions is not None and repetitions < 1:
        raise Refused(Code.USAGE, f"--reps {repetitions} is no number of runs", "", f"wherry study run {name} --reps 5")
    if os.geteuid() != 0:
        raise Refused(Code.PERMISSION, "a study needs root", "it makes clusters", as_root(["study", "run", name]))
    os.environ.setdefault("WHERRY_INSTANCE", _INSTANCE)
    if own_hosts:
        _require_new_instance(name, own_hosts)
    directory = (out or Path(f"study-{name}{'-quick' if quick else '-paper' if paper else ''}")).resolve()
    with sole_use():
        clean_up = _clean_up()
        findings = daemon_process.examine()
        probes = _probed(own_hosts.first(asked.used_hosts()), directory) if own_hosts else []
        lacks, recorded = _as_begun(directory, name, findings, host_probe.unavailable(probes) if probes else {})
        study = kind(quick, lacks, settings, paper, recorded, own_hosts)
        _require_runs(study)
        hosts = host_probe.texts(probes, own_hosts.spec.encryption) if own_hosts else {}
        facts = {**versions(findings), **hosts}
        results = Results.create(directory, study, repetitions or study.default_repetitions(), facts)
        try:
            return results, _run_session(results, facts, None if keep else clean_up, on_progress)
        except KeyboardInterrupt:
            counted, missing = len(results.counted()), runner.count_missing(results)
            what = f"interrupted: {counted} runs count, {len(results.failed())} failed, {missing} are missing"
            words = [f"--set {key}={value}" for key, value in (settings or {}).items()]
            words += [f"--fabric {own_hosts.file}"] if own_hosts else []
            words += [word for word, said in (("--quick", quick), ("--paper", paper), (f"--out {out}", out)) if said]
            again = " ".join(["wherry study run", name, *words])
            raise Failed(Code.CANCELLED, what, f"see {directory / render.PAGE}", f"{again}   # continues") from None


def _probed(hosts: Sequence[HostSpec], directory: Path) -> Sequence[host_probe.Probe]:
    """The hosts' answers. Refused when they do not see the study's directory."""
    probes = host_probe.probe(hosts)
    host_probe.require_shared(hosts, directory)
    return probes


def _require_new_instance(name: str, own_hosts: OwnHosts) -> None:
    """Refused (WRONG_STATE) in an instance that exists and is not the studies' own: it has another fabric."""
    place = instance()
    if place.name != _INSTANCE and _exists(place):
        what, why = f"the instance {place.name} is in use", "a study on hosts of your own makes a fabric of them"
        again = f"sudo env -u WHERRY_INSTANCE wherry study run {name} --fabric {own_hosts.file}"
        raise Refused(Code.WRONG_STATE, what, why, again)


def _require_runs(study: Study) -> None:
    """Refused (UNSUPPORTED) when the machine can measure nothing of it, with the levels that are missing."""
    if not study.combinations():
        missing = [factor.levels for factor in study.factors() if not factor.measured()]
        why = "; ".join(f"{level.text}: {level.left_out}" for levels in missing for level in levels)
        what = f"nothing of the study {study.name} can be measured here"
        raise Refused(Code.UNSUPPORTED, what, why, f"wherry study show {study.name}")


def _run_session(
    results: Results[Study],
    facts: Mapping[str, str],
    clean_up: Callable[[], None] | None,
    on_progress: runner.ProgressCallback,
) -> list[Path]:
    try:
        with results.session(facts):
            _run_remaining(results, clean_up, on_progress)
    finally:
        results.release_reserve()
        try:
            files = render.write(results)
        finally:
            identity.hand_over(results.directory, *results.directory.rglob("*"))
    return files


def _run_remaining(
    results: Results[Study], clean_up: Callable[[], None] | None, on_progress: runner.ProgressCallback
) -> None:
    study = results.study
    testbed = study.testbed(results.directory)
    try:
        if study.own_hosts:  # before the runs, which would fail one by one
            testbed.use_fabric(study.own_hosts.fabric(study.used_hosts()))
        runner.run(results, testbed, on_progress)
    finally:
        try:
            if fabric := testbed.fabric():
                results.add_fact("fabric", fabric)
        finally:
            if clean_up:
                _take_down(testbed, clean_up)


def load(directory: Path) -> Results[Study]:
    """Loads the results in a directory."""
    about = Results.read_manifest(directory)
    hosts = about.get("own_hosts")
    study: Study = find(about["study"])(
        about["quick"],
        about["lacks"],
        about.get("settings", {}),
        about.get("paper", False),
        about.get("values"),
        OwnHosts.of(hosts, str(directory / "study.json")) if hosts else None,
    )
    return Results(directory, study, about)


def _as_begun(
    directory: Path, name: str, findings: Sequence[Mapping[str, str]], lacks_of_hosts: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """The features that the machine, or the user's hosts, lack, and the values of all settings, as they were when the
    study was created, so that all its sessions measure the same; no values if it is created now."""
    if not (directory / "study.json").exists():
        return {**unavailable_features(findings), **(lacks_of_hosts or {})}, None
    begun = Results.read_manifest(directory)
    return begun["lacks"], begun.get("values") if begun.get("study") == name else None


def _take_down(testbed: Testbed, clean_up: Callable[[], None]) -> None:
    """Removes the clusters, then cleans up, whatever came of that."""
    try:
        testbed.close()
    finally:
        clean_up()


def _clean_up() -> Callable[[], None]:
    """The steps back to the instance's present state, when the study's clusters are removed: an instance that is not
    there yet, or is the studies' own, is removed; in another one the daemon is stopped unless it runs already."""
    place = instance()
    own = place.name == _INSTANCE or not _exists(place)
    runs = daemon_process.answers(place)

    def clean_up() -> None:
        if own or not runs:
            daemon_process.stop(place)
        if own and _exists(place):
            daemon_process.sweep()

    return clean_up


def _exists(place: Instance) -> bool:
    return place.run.exists() or place.state.exists()


def describe(study: Study) -> dict[str, object]:
    """The document of `wherry study show`."""
    about = {"lacks": study.unavailable, "sessions": [], "repetitions": study.default_repetitions()}
    page = study.page(Results(Path("/nonexistent"), study, about))  # as before the first run
    return {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "lasts": study.paper_duration if study.paper else study.duration[study.quick],
        "repetitions": study.default_repetitions(),
        "warmups": study.default_warmups(),
        "seed": study.seed,
        "factors": [
            {
                "name": factor.name,
                "text": factor.text,
                "levels": [{"name": v.name, "text": v.text, "left_out": v.left_out} for v in factor.levels],
            }
            for factor in study.factors()
        ],
        "settings": [
            {
                "name": setting.name,
                "text": setting.text,
                "value": setting.shown(study.value(setting)),
                "full": setting.shown(setting.full),
                "quick": setting.shown(setting.quick),
                "paper": None if setting.paper is None else setting.shown(setting.paper),
                "option": option_of(type(study), setting.name),
            }
            for setting in study.settings
        ],
        "combinations": [str(combination) for combination in study.combinations()],
        "verified": list(study.validity_checks),
        "tables": [table.title for table in page.tables],
        "figures": [caption for caption, _ in page.figures],
        "shows": list(study.shows),
        "cannot_show": list(study.limits()),
    }
