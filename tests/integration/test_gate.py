"""scripts/test in a checkout of its own with a few tests: failures, unsteady tests, and runs that are stopped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

# The run of a few tests leaves out lint, the instances of this machine, and the coverage of the whole. Pytest has had
# its time when there is a file `time-is-over`.
DRIVER = """
import importlib.machinery, importlib.util, os, subprocess, sys, time
loader = importlib.machinery.SourceFileLoader("gate", "scripts/test")
gate = importlib.util.module_from_spec(importlib.util.spec_from_loader("gate", loader))
loader.exec_module(gate)
gate.step = gate.nothing_left = gate.coverage = lambda *words: gate.Counter()
gate.instances = set
gate.SECOND_TRIES = float(sys.argv.pop(1))

class Process(subprocess.Popen):
    def wait(self, timeout=None):
        end = time.monotonic() + (timeout or 0)
        while timeout and time.monotonic() < end and self.poll() is None:
            if os.path.exists("time-is-over"):
                os.remove("time-is-over")
                end = 0
            time.sleep(0.05)
        return super().wait(timeout and 0)

subprocess.Popen = Process
sys.exit(gate.main())
"""

# A test that passes at its Nth try, each in a process of its own.
TRIES = """
from pathlib import Path
def test_{name}():
    count = Path("tries-{name}")
    tried = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(tried))
    assert tried >= {passes}, "this is try %d" % tried
"""


# A test that hangs, beside one in another file that has passed a second before the time is over.
HANGS = """
import time
from pathlib import Path
def test_hangs():
    while not Path("passed").exists():
        time.sleep(0.05)
    time.sleep(1)
    Path("time-is-over").touch()
    time.sleep(300)
"""
PASSES = """
from pathlib import Path
def test_that_passes():
    Path("passed").touch()
"""

# A test that fails, and at its second try does not end.
LONG = """
import time
from pathlib import Path
def test_that_is_long():
    if Path("tried").exists():
        time.sleep(300)
    Path("tried").touch()
    assert False
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("system", "docs", "contract", "integration", "unit"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    for file in (TOP / "tests").glob("*.py"):
        shutil.copy(file, tmp_path / "tests")
    shutil.copy(TOP / "conftest.py", tmp_path)
    (tmp_path / "scripts").mkdir()
    shutil.copy(TOP / "scripts" / "test", tmp_path / "scripts")
    shutil.copy(TOP / "tests" / "parts.toml", tmp_path / "tests")
    shutil.copy(TOP / "pyproject.toml", tmp_path)
    (tmp_path / "src").symlink_to(TOP / "src")
    (tmp_path / "tiles").mkdir()
    (tmp_path / "tiles" / "wherry_tiles").symlink_to(TOP / "tiles" / "wherry_tiles")
    (tmp_path / ".venv").symlink_to(TOP / ".venv")
    return tmp_path


def run(checkout: Path, *kind: str, second_tries: float = 600) -> tuple[int, list[str]]:
    """The exit code and the lines that it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE_"))}
    words = [sys.executable, "-c", DRIVER, str(second_tries), *kind]
    done = subprocess.run(words, cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout.splitlines()


def write(checkout: Path, file: str, *texts: str) -> None:
    (checkout / "tests" / file).write_text("\n".join(texts))


def test_what_passes_at_a_second_or_third_try_is_unsteady_and_green(checkout: Path) -> None:
    first, second = (TRIES.format(name=name, passes=passes) for name, passes in (("once", 2), ("twice", 3)))
    write(checkout, "unit/test_first.py", first, "def test_that_passes(): pass")
    write(checkout, "system/test_second.py", "import pytest", "pytestmark = pytest.mark.smoke", second)
    code, lines = run(checkout)
    assert code == 0
    assert lines[-1] == "3 passed, 0 failed, 0 skipped"
    told = "\n".join(lines[lines.index(next(line for line in lines if line.startswith("unsteady: "))) :])
    assert "unsteady: tests/unit/test_first.py::test_once: passed at try 2; when it failed: pressure: " in told
    assert "unsteady: tests/system/test_second.py::test_twice: passed at try 3; when it failed: pressure: " in told
    assert "; load " in told
    assert "AssertionError: this is try 1" in told
    assert not any(line.startswith("failed: ") for line in lines)
    kept = [json.loads(line) for line in (checkout / "build/test/unsteady.jsonl").read_text().splitlines()]
    assert {(row["test"].rpartition("::")[2], row["passed at try"]) for row in kept} == {
        ("test_once", 2),
        ("test_twice", 3),
    }
    assert all("this is try 1" in row["traceback"] and "load " in row["machine"] for row in kept)


def test_what_fails_three_times_is_red(checkout: Path) -> None:
    write(checkout, "unit/test_one.py", TRIES.format(name="thrice", passes=4), TRIES.format(name="once", passes=2))
    write(checkout, "unit/test_two.py", "import nothing_of_this_name")
    (checkout / "build" / "test").mkdir(parents=True)
    (checkout / "build" / "test" / "unsteady.jsonl").write_text("{}\n")
    code, lines = run(checkout)
    assert code == 1
    assert lines[-1] == "1 passed, 2 failed, 0 skipped"
    assert set(lines[-3:-1]) == {"failed: tests/unit/test_one.py::test_thrice", "failed: tests/unit/test_two.py"}
    assert (checkout / "tries-thrice").read_text() == "3"
    kept = {path.name: path for path in (checkout / "build/test/failed").iterdir()}
    assert sorted(kept) == [f"unit_test_one.py_test_{name}" for name in ("once", "thrice", "thrice.2", "thrice.3")]
    assert "this is try 1" in (kept["unit_test_one.py_test_thrice"] / "report.txt").read_text()
    assert "PID" in (kept["unit_test_one.py_test_once"] / "processes.txt").read_text()
    assert len((checkout / "build" / "test" / "unsteady.jsonl").read_text().splitlines()) == 2  # the run before is kept


@pytest.mark.thorough
def test_a_broken_set_up_or_teardown_is_tried_again_too(checkout: Path) -> None:
    for name, before in (("set_up", ""), ("torn", "    yield\n")):
        fixture = TRIES.format(name=name, passes=2).replace("def test_", "import pytest\n@pytest.fixture\ndef ")
        text = fixture.replace("    count =", f"{before}    count =", 1)
        write(checkout, f"integration/test_{name}.py", text, f"def test_it({name}): pass")
    code, lines = run(checkout)
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 0 skipped")
    assert sum(line.startswith("unsteady: ") for line in lines) == 2


@pytest.mark.thorough
def test_a_run_that_takes_too_long_is_stopped_and_names_what_did_not_run(checkout: Path) -> None:
    write(checkout, "integration/test_long.py", HANGS, "def test_of_the_same_file(): pass")
    write(checkout, "unit/test_short.py", PASSES)
    code, lines = run(checkout)
    assert code == 1
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert "not run: tests/integration/test_long.py::test_hangs" in lines
    assert "not run: tests/integration/test_long.py::test_of_the_same_file" in lines
    assert "not run: tests/unit/test_short.py::test_that_passes" not in lines
    assert lines[-2].startswith("failed: pytest was stopped after ") and "; 2 tests, " in lines[-2]


@pytest.mark.thorough
def test_a_run_that_breaks_off_is_red_though_what_failed_passes_again(checkout: Path) -> None:
    options = checkout / "pyproject.toml"
    options.write_text(options.read_text().replace('addopts = "', 'addopts = "--maxfail=1 '))
    long = "import time\ndef test_long(): time.sleep(30)"
    write(checkout, "unit/test_broken.py", TRIES.format(name="once", passes=2), long, "def test_last(): pass")
    code, lines = run(checkout)
    assert code == 1
    assert any(line.startswith("unsteady: tests/unit/test_broken.py::test_once") for line in lines)
    assert "not run: tests/unit/test_broken.py::test_last" in lines
    assert lines[-2].startswith("failed: pytest ended with ")


@pytest.mark.thorough
def test_second_tries_end_in_time(checkout: Path) -> None:
    write(checkout, "unit/test_long.py", LONG)
    write(checkout, "unit/test_short.py", "def test_that_fails(): assert False")
    code, lines = run(checkout, second_tries=1)
    assert (code, lines[-1]) == (1, "0 passed, 2 failed, 0 skipped")
    assert "not tried again, as there is no time left: tests/unit/test_short.py::test_that_fails" in lines


@pytest.mark.thorough
def test_each_kind_has_its_tests(checkout: Path) -> None:
    marks = {"plain": "", "smoke": "@pytest.mark.smoke\n", "times": "@pytest.mark.measures('a bound')\n"}
    for folder in ("unit", "integration", "system"):
        bodies = (f"{mark}def test_{name}(): pass" for name, mark in marks.items())
        write(checkout, f"{folder}/test_{folder}.py", "import pytest", *bodies)
    write(checkout, "integration/test_fuzz.py", "def test_a_parser_is_fuzzed(): pass")
    assert run(checkout)[1][-1] == "5 passed, 0 failed, 0 skipped"
    assert run(checkout, "all", "unit", "native")[1][-1] == "5 passed, 0 failed, 0 skipped"
    assert run(checkout, "all")[1][-1] == "7 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("waited", ["0.00", "37.50"])
def test_times_are_compared_on_a_quiet_machine_alone(checkout: Path, waited: str) -> None:
    write(checkout, "unit/test_times.py", "import pytest\n@pytest.mark.measures('a bound')\ndef test_times(): pass")
    driver = checkout / "scripts" / "test"
    driver.write_text(driver.read_text().replace("/proc/pressure", str(checkout)))
    for kind in ("cpu", "memory", "io"):
        (checkout / kind).write_text(f"some avg10={waited} avg60=0.00 avg300=0.00 total=0\n")
    code, lines = run(checkout, "measured")
    if waited == "0.00":
        assert (code, lines[-1]) == (0, "1 passed, 0 failed, 0 skipped")
    else:
        assert code == 1 and "not quiet: programs waited for a processor in 37.5 %" in lines[0]
