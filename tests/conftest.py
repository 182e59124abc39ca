"""What all tests share: imports from here, property tests, tests that measure, and the counts that `make test` sums up.

A shell that starts tests in the background has them ignore SIGINT, and so would all that they start and end by Ctrl-C.

Property tests look at the same examples every time, as what passed is to pass again: `make test-properties` at others.
"""

import json
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from machine import busiest, own_priority
from postgresql_server import Server, postgresql_server, programs
from properties import MORE

settings.register_profile("same", derandomize=True)
settings.register_profile("others", derandomize=False, print_blob=True, max_examples=100 * MORE)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server for all tests of this process."""
    if not programs():
        pytest.skip("there is no PostgreSQL server here: scripts/setup-test")
    with postgresql_server() as server:
        yield server


@pytest.fixture(autouse=True)
def priority() -> Iterator[None]:
    """No test leaves another priority to the next one."""
    with own_priority():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--counts", type=Path, help="write how many tests passed, failed and were skipped to this file")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked as measuring has a second try; the mark must name the bound."""
    for item in items:
        if mark := item.get_closest_marker("measures"):
            if not (mark.args and isinstance(mark.args[0], str)):
                raise pytest.UsageError(f"{item.nodeid}: measures() names the bound that is loose, and why")
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the machine was busy with."""
    report = yield
    if report.failed:
        report.sections.append(("busiest processes of this machine", busiest()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes the counts, which tests failed, and the seconds of each file.

    A test that fails in its body and its teardown counts once, a failed first try not at all.
    """
    if config.option.counts is None:
        return
    ran = {kind: {report.nodeid for report in terminalreporter.stats.get(kind, [])} for kind in _KINDS}
    failed = ran["failed"] | ran["error"]
    counts = {"passed": len(ran["passed"] - failed), "failed": len(failed), "skipped": len(ran["skipped"] - failed)}
    seconds = Counter[str]()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    told = {"counts": counts, "failed": sorted(failed), "seconds": {name: round(seconds[name], 1) for name in seconds}}
    config.option.counts.write_text(json.dumps(told))


_KINDS = ("passed", "failed", "error", "skipped")
