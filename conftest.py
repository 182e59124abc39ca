"""Shared by all tests: imports from here, property tests, tests that measure, and the results for `make test`.

Tests that a shell starts in the background ignore SIGINT; programs that they start and end by Ctrl-C would inherit it.

Property tests use the same examples every time, so that passed tests pass again: `make test-properties` uses others.
"""

import json
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

import evidence
from machine import busiest, own_priority, pressure
from postgresql_server import Server, postgresql_server, programs
from properties import MORE

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("others", derandomize=False, deadline=None, print_blob=True, max_examples=100 * MORE)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Dispositions(NamedTuple):
    handlers: dict[signal.Signals, Any]
    blocked: set[signal.Signals]


def _dispositions() -> _Dispositions:
    """The handlers of signals in this process, and the blocked signals."""
    ends = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)
    return _Dispositions({number: signal.getsignal(number) for number in ends}, signal.pthread_sigmask(0, []))


_AT_FIRST = _dispositions()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server for all tests of this process."""
    if not programs():
        pytest.skip("there is no PostgreSQL server here: scripts/setup-test")
    with postgresql_server() as server:
        yield server


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """No test leaves another priority to the next one, nor other signals that are ignored or blocked, which all
    programs of later tests would inherit."""
    with own_priority():
        yield
    changed = _dispositions()
    for number, handler in _AT_FIRST.handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, _AT_FIRST.blocked)
    assert changed == _AT_FIRST, "the test, or a fixture of it, changed the handling of signals in this process"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--smoke", action="store_true", help="only the tests of `make test`")
    parser.addoption("--results", type=Path, help="file for the outcome of each test, and the tests that did not run")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.results is not None:
        config.pluginmanager.register(Results(config.option.results))


def kind_of(item: pytest.Item) -> str:
    """The directory of the test below its `tests`: unit, contract, integration, system or docs."""
    parts = item.path.relative_to(Path(__file__).parent).parts
    return parts[parts.index("tests") + 1]


def interleaved(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files of tests that mostly wait among files of tests that mostly compute, so that workers beside each other do
    both. Waiting tests take longer: the last of their files begins when seven tenths of the others have."""
    files: dict[bool, dict[Path, list[pytest.Item]]] = {True: {}, False: {}}
    for item in items:
        waits = kind_of(item) in ("system", "docs", "contract")
        files[waits].setdefault(item.path, []).append(item)
    places = [
        (number / len(found) * (0.7 if waits else 1), waits, path)
        for waits, found in files.items()
        for number, path in enumerate(found)
    ]
    return [item for _, waits, path in sorted(places) for item in files[waits][path]]


def in_smoke_set(item: pytest.Item) -> bool:
    """Unit tests; integration tests that have neither sanitizers nor a fuzzer; other tests that are marked `smoke`.

    Tests that are marked `thorough` are left out (CONTRIBUTING.md).
    """
    kind = kind_of(item)
    if item.get_closest_marker("thorough"):
        return False
    if kind == "integration":
        return not any(word in item.nodeid for word in ("sanitize", "fuzz"))
    return kind == "unit" or item.get_closest_marker("smoke") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Chooses the smoke set. The mark of a test that measures must name the bound."""
    if config.option.smoke:
        config.hook.pytest_deselected(items=[item for item in items if not in_smoke_set(item)])
        items[:] = filter(in_smoke_set, items)
    items[:] = interleaved(items)
    for item in items:
        mark = item.get_closest_marker("measures")
        if mark and not (mark.args and isinstance(mark.args[0], str)):
            raise pytest.UsageError(f"{item.nodeid}: measures() names the bound that is loose, and why")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the machine's load; `make test` keeps more, as the test's objects are removed now."""
    report = yield
    if report.failed:
        report.sections.append((_MACHINE, f"{pressure()}\n{busiest()}"))
        if results := item.config.getoption("--results"):
            evidence.keep(Path(results).parent / "failed", report)
    return report


class Results:
    """Writes the counts, why tests failed, which did not run, and the seconds of each file.

    A test that fails in its body and its teardown counts once.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._collected = set[str]()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._collected.update(ids)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        stats = terminalreporter.stats
        ran = {kind: {report.nodeid for report in stats.get(kind, [])} for kind in _KINDS}
        failed = dict[str, dict[str, str]]()
        for report in (*stats.get("failed", []), *stats.get("error", [])):
            machine = next((text for title, text in report.sections if title == _MACHINE), "")
            failed.setdefault(report.nodeid, {"traceback": report.longreprtext, "machine": machine})
        seconds = Counter[str]()
        for report in (one for reports in stats.values() for one in reports):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
        results = {
            "passed": len(ran["passed"] - set(failed)),
            "skipped": len(ran["skipped"] - set(failed)),
            "failed": failed,
            "not run": sorted(self._collected.difference(*ran.values())),
            "seconds": {name: round(seconds[name], 1) for name in seconds},
        }
        self._file.write_text(json.dumps(results))


_KINDS = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
_MACHINE = "busiest processes of this machine"
