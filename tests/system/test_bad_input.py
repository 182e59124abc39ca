"""Invalid names, files, programs, hosts and states give one error with a code and a next step, and change nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from realworld import SECONDS, RealInstance, real_instance

from wherry.base.errors import Code

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

FABRIC = """\
kind: fabric
version: 1
name: poor
pool: 10.77.0.0/16
sites: [{name: a}]
hosts:
  - {name: a1, site: a, cores: 2, memory: 1GiB}
  - {name: a2, site: a, cores: 2, memory: 1GiB}
  - {name: full, site: a, cores: 2, memory: 1GiB, facts: {memory: 64MiB}}
  - {name: old, site: a, cores: 2, memory: 1GiB, facts: {without_cpu_features: [sse2]}}
  - {name: bare, site: a, cores: 2, memory: 1GiB, facts: {without_files: [/etc/passwd]}}
  - {name: down, site: a, cores: 2, memory: 1GiB}
"""
LINKED = FABRIC.replace("{name: a}", "{name: a}, {name: b}").replace("a2, site: a", "a2, site: b")
"""A valid fabric file with two sites, to which cases add an invalid link."""
CLUSTER = "kind: container\nversion: 1\nname: bad\nnodes: 2\ncpus: 0.25\nmemory: 128MiB\n"
"""A valid cluster file, which cases make invalid by one line."""

COMMANDS: list[tuple[str, Code, str]] = [
    ("launch", Code.USAGE, ""),
    ("up", Code.USAGE, ""),
    ("up no-such-file.yaml", Code.NOT_FOUND, "no-such-file.yaml"),
    ("up .", Code.INVALID_FILE, "irectory"),
    ("up poor.yaml", Code.INVALID_FILE, "wherry fabric up"),
    ("up --sideways two.yaml", Code.USAGE, "--sideways"),
    ("down", Code.USAGE, "--all"),
    ("down two --all", Code.USAGE, "--all"),
    ("down tow", Code.NOT_FOUND, "two"),
    ("status tow", Code.NOT_FOUND, "two"),
    ("run tow -n 2 -- /bin/true", Code.NOT_FOUND, "two"),
    ("run two -n 2 -- no-such-program", Code.NOT_FOUND, "no-such-program"),
    ("run two -n 2 -- ./two.yaml", Code.PERMISSION, "chmod +x"),
    ("run two -n 0 -- /bin/true", Code.USAGE, "rank"),
    ("run two -n two -- /bin/true", Code.USAGE, "two"),
    ("run two -- /bin/true", Code.USAGE, "ranks"),
    ("run two -n 5000 -- /bin/true", Code.USAGE, "4096"),
    ("run two -n 2", Code.USAGE, "PROGRAM"),
    ("run two -n 2 -- ./no-such-program", Code.NOT_FOUND, "no-such-program"),
    ("run two -n 2 -- .", Code.NOT_FOUND, "PATH"),
    ("run two -n 1000 -- /bin/true", Code.NO_CAPACITY, "ranks at most"),
    ("run two -n 2 --mpi lam -- /bin/true", Code.USAGE, "openmpi"),
    ("run two -n 2 --mpi /bin/true -- /bin/true", Code.UNSUPPORTED, "--version"),
    ("run two -n 2 --mpi /no/mpirun -- /bin/true", Code.NOT_FOUND, "/no/mpirun"),
    ("logs tow", Code.NOT_FOUND, "two"),
    ("logs two --job job-x", Code.NOT_FOUND, "job-x"),
    ("move two-7 --to a2", Code.NOT_FOUND, "two-1"),
    ("move two-0", Code.USAGE, "--to"),
    ("move two-0 --to a9", Code.NOT_FOUND, "a1"),
    ("move two-0 --to a1", Code.WRONG_STATE, "already"),
    ("move two-0 --to full", Code.NO_CAPACITY, "memory"),
    ("move two-0 --to old", Code.INCOMPATIBLE_HOST, "sse2"),
    ("move two-0 --to bare", Code.INCOMPATIBLE_HOST, "/etc/passwd"),
    ("move two-0 --to down", Code.HOST_DOWN, "down"),
    ("move two-0 --to old --dry-run", Code.INCOMPATIBLE_HOST, "sse2"),
    ("move two-0 --to down --dry-run", Code.HOST_DOWN, "down"),
    ("move two-0 --to a2 --max-rounds many", Code.USAGE, "many"),
    ("move two-0 --to a2 --max-rounds -1", Code.USAGE, "rounds"),
    ("fabric up two.yaml", Code.INVALID_FILE, "wherry up"),
    ("fabric up other.yaml", Code.WRONG_STATE, "two"),
    ("fabric down", Code.WRONG_STATE, "two"),
    ("fabric up no-such-file.yaml", Code.NOT_FOUND, "no-such-file.yaml"),
    ("host show a9", Code.NOT_FOUND, "a1"),
    ("host drain a9", Code.NOT_FOUND, "a1"),
    ("host restore a9", Code.NOT_FOUND, "a1"),
    ("node show two-7", Code.NOT_FOUND, "two-1"),
    ("node list tow", Code.NOT_FOUND, "two"),
    ("site link set a z --latency 5ms", Code.NOT_FOUND, "z"),
    ("site link set a", Code.USAGE, "OTHER"),
    ("job list tow", Code.NOT_FOUND, "two"),
    ("job show job-x", Code.NOT_FOUND, "job-x"),
    ("job cancel job-x", Code.NOT_FOUND, "job-x"),
    ("op show op-x", Code.NOT_FOUND, "op-x"),
    ("op wait op-x", Code.NOT_FOUND, "op-x"),
    ("op cancel op-x", Code.NOT_FOUND, "op-x"),
    ("daemon start --group no-such-group", Code.WRONG_STATE, "runs already"),
    ("status -o yaml", Code.USAGE, "yaml"),
    ("study show no-such-study", Code.NOT_FOUND, "no-such-study"),
    ("study run no-such-study", Code.NOT_FOUND, "no-such-study"),
    ("study report no-such-directory", Code.NOT_FOUND, "no-such-directory"),
]

FILES: list[tuple[str, str, str, Code, str]] = [
    # name of the case, command, file, code, part of the error
    ("unknown key", "up", CLUSTER + "memroy: 1GiB\n", Code.INVALID_FILE, "memory"),
    ("no unit", "up", CLUSTER.replace("128MiB", "128"), Code.INVALID_FILE, "unit"),
    ("wrong unit", "up", CLUSTER.replace("128MiB", "128 parsecs"), Code.INVALID_FILE, "128 parsecs"),
    ("key twice", "up", CLUSTER + "nodes: 3\n", Code.INVALID_FILE, "twice"),
    ("no YAML", "up", CLUSTER + "nodes: [1\n", Code.INVALID_FILE, "YAML"),
    ("empty", "up", "", Code.INVALID_FILE, "mapping"),
    ("no name", "up", CLUSTER.replace("name: bad\n", ""), Code.INVALID_FILE, "name"),
    ("bad name", "up", CLUSTER.replace("bad", "Bad_Name"), Code.INVALID_FILE, "Bad_Name"),
    ("no nodes", "up", CLUSTER.replace("nodes: 2", "nodes: 0"), Code.INVALID_FILE, "nodes"),
    ("wrong version", "up", CLUSTER.replace("version: 1", "version: 2"), Code.INVALID_FILE, "version"),
    ("little memory", "up", CLUSTER.replace("128MiB", "1MiB"), Code.INVALID_FILE, "16MiB"),
    ("another size", "up", CLUSTER.replace("bad", "two").replace("128MiB", "64MiB"), Code.WRONG_STATE, "memory"),
    ("more than capacity", "up", CLUSTER.replace("nodes: 2", "nodes: 60"), Code.NO_CAPACITY, "memory"),
    ("larger than a host", "up", CLUSTER.replace("128MiB", "8GiB"), Code.NO_CAPACITY, "memory"),
    ("no such host", "up", CLUSTER + "hosts: [a9]\n", Code.NOT_FOUND, "a9"),
    ("no such site", "up", CLUSTER + "sites: [c]\n", Code.NOT_FOUND, "c"),
    ("only a host that is down", "up", CLUSTER + "hosts: [down]\n", Code.NO_CAPACITY, "down"),
    ("a file that is nowhere", "up", CLUSTER + "needs: [/no/such/file]\n", Code.INCOMPATIBLE_HOST, "/no/such/file"),
    ("kind that is not there", "up", CLUSTER.replace("container", "tile"), Code.INVALID_FILE, "kind"),
    ("host twice", "fabric up", FABRIC.replace("name: a2", "name: a1"), Code.INVALID_FILE, "a1"),
    ("unknown site", "fabric up", FABRIC.replace("a2, site: a", "a2, site: b"), Code.INVALID_FILE, "b"),
    ("no cores", "fabric up", FABRIC.replace("a2, site: a, cores: 2", "a2, site: a, cores: 0"), Code.INVALID_FILE, "c"),
    ("public pool", "fabric up", FABRIC.replace("10.77.0.0", "8.8.0.0"), Code.INVALID_FILE, "8.8.0.0"),
    ("no unit of a host", "fabric up", FABRIC.replace("memory: 1GiB}", "memory: 1024}", 1), Code.INVALID_FILE, "unit"),
    ("site twice", "fabric up", LINKED.replace("{name: b}", "{name: a}"), Code.INVALID_FILE, "a"),
    ("latency, no unit", "fabric up", LINKED + "links: [{between: [a, b], latency: 10}]", Code.INVALID_FILE, "10"),
    ("lossy", "fabric up", LINKED + "links: [{between: [a, b], loss: 150%}]", Code.INVALID_FILE, "loss"),
    ("link to nowhere", "fabric up", LINKED + "links: [{between: [a, z]}]", Code.INVALID_FILE, "z"),
    ("link to itself", "fabric up", LINKED + "links: [{between: [a, a]}]", Code.INVALID_FILE, "a"),
    ("link twice", "fabric up", LINKED + "links: [{between: [a, b]}, {between: [b, a]}]", Code.INVALID_FILE, "pair"),
    ("unknown driver", "fabric up", FABRIC + "driver: moon\n", Code.INVALID_FILE, "driver"),
]


@pytest.fixture(scope="module")
def poor() -> Iterator[RealInstance]:
    """Two nodes on a1 and a2, and four further hosts that each lack something."""
    with real_instance("tbad") as created:
        created.json("fabric", "up", created.file("poor.yaml", FABRIC))
        created.file("other.yaml", FABRIC.replace("poor", "other").replace("a2", "a3"))
        created.up("two", 2, more="hosts: [a1, a2]\nneeds: [/etc/passwd]\n")
        words = ["ip", "-n", f"{created.instance.prefix}-down", "link", "set", "up0", "down"]
        subprocess.run(words, check=True, timeout=SECONDS)
        yield created


def known(real_instance: RealInstance) -> list[Any]:
    """The state that a refused command must not change."""
    lists = ("status", "node list", "job list", "host list", "op list", "event list")
    rows: list[Any] = [real_instance.json(*words.split()) for words in lists]
    return [*rows, real_instance.fabric(), real_instance.mounts(), sorted(real_instance.processes().values())]


def assert_refused(real_instance: RealInstance, words: list[str], code: Code, expected: str) -> None:
    """Asserts one error as text and as JSON, with the exit code of its error code."""
    before_program = words.index("--") if "--" in words else len(words)
    as_json = [] if "-o" in words else ["-o", "json"]
    done = real_instance(*words[:before_program], *as_json, *words[before_program:])
    assert done.returncode == code.exit_code, (done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"error {code}: ") and done.stderr.count("error ") == 1, done.stderr
    assert any(line.startswith("  next: ") and len(line) > 10 for line in lines), done.stderr
    assert expected in done.stderr and "Traceback" not in done.stderr
    if as_json:
        document = json.loads(done.stdout)
        assert document["schema"] == "wherry/error/1" and document["error"]["code"] == code
        assert document["error"]["what"] and document["error"]["next"]
    else:
        assert done.stdout == ""


@pytest.fixture(scope="module")
def unchanged_instance(poor: RealInstance) -> Iterator[RealInstance]:
    """An instance whose state must be the same before and after all refused commands."""
    before = known(poor)
    yield poor
    for then, now in zip(before, known(poor), strict=True):
        assert now == then


@pytest.mark.parametrize(("words", "code", "expected"), COMMANDS, ids=[words for words, _, _ in COMMANDS])
def test_unknown_commands_and_arguments_are_refused(
    unchanged_instance: RealInstance, words: str, code: Code, expected: str
) -> None:
    assert_refused(unchanged_instance, words.split(), code, expected)


@pytest.mark.parametrize(("case", "command", "text", "code", "expected"), FILES, ids=[case[0] for case in FILES])
def test_invalid_files_are_refused(
    unchanged_instance: RealInstance, case: str, command: str, text: str, code: Code, expected: str
) -> None:
    assert_refused(unchanged_instance, [*command.split(), unchanged_instance.file("wrong.yaml", text)], code, expected)


def test_dry_run_refuses_what_up_refuses(unchanged_instance: RealInstance) -> None:
    file = unchanged_instance.file("wrong.yaml", CLUSTER + "hosts: [a9]\n")
    assert_refused(unchanged_instance, ["up", "--dry-run", file], Code.NOT_FOUND, "a9")


def test_refused_up_makes_neither_fabric_nor_operation() -> None:
    """A cluster that a fabric to be made could not carry is refused before anything is made."""
    with real_instance("tref") as fresh:
        for text, code, expected in (
            (CLUSTER.replace("nodes: 2", "nodes: 60"), Code.NO_CAPACITY, "CPUs left"),
            (CLUSTER.replace("128MiB", "8GiB"), Code.NO_CAPACITY, "memory"),
            (CLUSTER + "needs: [/no/such/file]\n", Code.INCOMPATIBLE_HOST, "/no/such/file"),
            (CLUSTER.replace("kind: container", "kind: vm\nimage: no-such-image"), None, ""),
        ):
            file = fresh.file("wrong.yaml", text)
            for words in (["up", "--dry-run", file], ["up", file]):
                if code:
                    assert_refused(fresh, words, code, expected)
                else:  # no such image, or, where there is no QEMU, no virtual machines
                    assert fresh(*words).returncode in (Code.NOT_FOUND.exit_code, Code.UNSUPPORTED.exit_code)
        assert fresh.json("op", "list")["operations"] == []
        assert fresh("fabric", "show").returncode == Code.NOT_FOUND.exit_code
        made = fresh.all_resources()
        assert not made["namespaces"] and not made["cgroups"], made
