"""The command line with a service in memory: output streams, exit codes, errors in three parts, JSON documents."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from command_line import Wherry
from rest_service import CLUSTER, FABRIC, Service

import wherry.client.client
from wherry import __version__
from wherry.cli import job_follow
from wherry.cli.balance import _show_profile
from wherry.cli.main import _COMMANDS
from wherry.model.profile import Flow, NodeLoad, Profile
from wherry.model.records import Host, Move, Phase


def test_cluster_is_planned_made_shown_and_removed(service: Service, wherry_: Wherry) -> None:
    assert "No cluster is up" in wherry_("status")[1]
    code, out, err = wherry_("up", "hello.yaml", "--dry-run")
    assert code == 0 and "3 to create" in out and not err
    assert "No cluster is up" in wherry_("status")[1]

    code, out, err = wherry_("up", "hello.yaml")
    assert code == 0 and "hello is up: 3 nodes" in out and "hello-0" in err
    code, out, _ = wherry_("status", "hello")
    assert code == 0 and "hello-2" in out and "No job ran" in out
    assert "hello-2" in wherry_("node", "list")[1]
    assert "processes" in wherry_("node", "show", "hello-0")[1]

    code, out, _ = wherry_("down", "hello")
    assert (code, out) == (0, "hello is removed (3 nodes).\n")
    assert wherry_("down", "hello")[0] == 3


def test_a_node_has_no_moves_of_an_earlier_cluster_of_its_name(service: Service, wherry_: Wherry) -> None:
    wherry_("up", "hello.yaml")
    store = service.context.store
    move = Move(
        id="mv-1", node="hello-0", cluster="hello", source="a1", destination="a2", phase=Phase.DONE, created=1, ended=2
    )  # fmt: skip
    store.put_move(move)

    def shown() -> list[str]:
        return [move["id"] for move in json.loads(wherry_("node", "show", "hello-0", "-o", "json")[1])["moves"]]

    assert shown() == ["mv-1"]
    wherry_("down", "hello")
    wherry_("up", "hello.yaml")
    assert shown() == []
    store.put_move(move.model_copy(update={"id": "mv-2"}))
    assert shown() == ["mv-2"]


def test_job_passes_on_its_streams_and_exit_code(service: Service, wherry_: Wherry) -> None:
    wherry_("up", "hello.yaml")
    assert wherry_("run", "hello", "-n", "2", "--", "prog", "3", "-x", "--mpi", "y") == (3, "out\n", "err\n")
    job = json.loads(wherry_("job", "list", "-o", "json")[1])["jobs"][0]
    assert job["argv"] == ["prog", "3", "-x", "--mpi", "y"] and job["ranks"] == 2
    assert wherry_("logs", "hello") == (0, "out\n", "err\n")
    assert wherry_("logs", "hello", "--job", job["id"]) == (0, "out\n", "err\n")
    assert wherry_("logs", "--job", job["id"], "-f") == (3, "out\n", "err\n")
    assert wherry_("logs", "--job", job["id"], "--node", "hello-0")[0] == 2
    assert wherry_("job", "wait", job["id"]) == (3, "", "")
    document = json.loads(wherry_("run", "hello", "-n", "1", "-o", "json", "--", "prog")[1])
    assert json.loads(wherry_("logs", "hello", "-o", "json")[1])["stderr"] == "err\n"
    assert document["schema"] == "wherry/run/1" and document["stdout"] == "out\n" and document["job"]["exit_code"] == 0

    code, out, _ = wherry_("run", "hello", "-n", "1", "--detach", "--", "sleep")
    id = out.strip()
    assert code == 0 and "running" in wherry_("job", "show", id)[1]
    assert "SIGUSR1 was sent to 2 processes" in wherry_("job", "signal", id, "sigusr1")[1]
    assert wherry_("job", "signal", id, "10")[0] == 0 and service.jobs.signals == [(id, "SIGUSR1")] * 2
    assert wherry_("job", "signal", id, "RTMIN")[0] == 2
    assert wherry_("job", "wait", id, "--timeout", "10ms")[0] == 1
    assert "cancelled" in wherry_("job", "cancel", id, "--grace", "0s")[1]
    assert wherry_("job", "cancel", id)[0] == 0
    before = wherry_("op", "list", "-o", "json")[1]
    assert wherry_("run", "hello", "-n", "1", "--", "missing")[0] == 3
    assert wherry_("op", "list", "-o", "json")[1] == before


def test_words_of_the_program_say_nothing_about_the_form_of_an_error(service: Service, wherry_: Wherry) -> None:
    code, out, err = wherry_("run", "none", "-n", "1", "prog", "-o", "json")
    assert code == 3 and not out and err.startswith("error NOT_FOUND")


def test_ctrl_c_ends_the_job(service: Service, wherry_: Wherry, monkeypatch: pytest.MonkeyPatch) -> None:
    wherry_("up", "hello.yaml")
    real = wherry.client.Client.output

    def interrupted(self: Any, id: str, follow: bool = True, *, taken: Any, **_: float) -> Iterator[Any]:
        chunks = real(self, id, follow=False, taken=taken)
        yield next(chunks)
        if follow:
            raise KeyboardInterrupt
        yield from chunks

    monkeypatch.setattr(wherry.client.Client, "output", interrupted)
    code, out, err = wherry_("run", "hello", "-n", "1", "--", "sleep")
    assert code == 130 and out == "out\n" and err.endswith("err\n") and "ending job" in err
    assert json.loads(wherry_("job", "list", "-o", "json")[1])["jobs"][0]["state"] == "cancelled"


def test_a_move_says_how_to_undo_it(service: Service, wherry_: Wherry) -> None:
    wherry_("up", "hello.yaml")
    source = service.context.store.nodes()[0].host
    target = "a2" if source != "a2" else "b1"
    code, out, _ = wherry_("move", "hello-0", "--to", target, "--dry-run")
    assert code == 0 and "Nothing was changed" in out
    code, out, err = wherry_("move", "hello-0", "--to", target)
    assert code == 0 and "downtime" in out and err
    assert out.splitlines()[-1] == f"Undo: wherry move hello-0 --to {source}"
    assert f"{source} to {target}: done" in wherry_("node", "show", "hello-0")[1]
    assert wherry_("move", "hello-0", "--to", "nowhere")[0] == 3


def test_the_ledger_has_what_was_foretold_of_a_move(service: Service, wherry_: Wherry) -> None:
    assert wherry_("ledger", "list") == (0, "No move with a forecast has finished.\n", "")
    assert wherry_("ledger", "show", "mv-1")[0] == 3
    wherry_("up", "hello.yaml")
    target = next(host for host in ("a2", "b1") if host != service.context.store.nodes()[0].host)
    move = json.loads(wherry_("move", "hello-0", "--to", target, "-o", "json")[1])
    code, out, _ = wherry_("ledger", "list")
    assert code == 0 and move["id"] in out and "downtime: 1 forecasts; the result was" in out
    entries = json.loads(wherry_("ledger", "list", "-o", "json")[1])["entries"]
    assert [entry["downtime"]["came"] for entry in entries] == [move["downtime"]]
    code, out, _ = wherry_("ledger", "show", move["id"])
    assert code == 0 and "foretold downtime" in out and "assumed rates" in out


def test_hosts_are_drained_and_restored(service: Service, wherry_: Wherry) -> None:
    wherry_("up", "hello.yaml")
    code, out, _ = wherry_("host", "drain", "a1")
    assert code == 0 and "a1 is drained" in out and "wherry host restore a1" in out
    assert "drained" in wherry_("host", "show", "a1")[1]
    assert wherry_("host", "restore", "a1")[0] == 0
    assert "drained" not in wherry_("host", "list")[1]
    assert wherry_("host", "show", "a9")[0] == 3
    code, out, _ = wherry_("host", "drain", "a1", "--at", "+2h")
    assert code == 0 and "a1 will be drained at 2" in out and "wherry host restore a1" in out
    assert "drained at" in wherry_("host", "show", "a1")[1]
    code, _, error = wherry_("host", "drain", "a1", "--at", "soon")
    assert code == 2 and "write 2026-12-24T06:00" in error


def test_operations_events_and_fabric_commands(service: Service, wherry_: Wherry) -> None:
    code, out, _ = wherry_("up", "hello.yaml", "--detach")
    id = out.strip()
    assert code == 0 and wherry_("op", "wait", id)[0] == 0
    assert "up" in wherry_("op", "list")[1] and "done" in wherry_("op", "show", id)[1]
    trail = json.loads(wherry_("op", "show", id, "-o", "json")[1])["trail"]
    assert [step["kind"] for step in trail][:: len(trail) - 1] == ["begin", "end"]
    assert all(step["text"] in wherry_("op", "show", id)[1] for step in trail)
    assert wherry_("op", "cancel", id)[0] == 5
    assert "cluster.up" in wherry_("event", "list")[1]
    assert wherry_("fabric", "down")[0] == 5
    wherry_("down", "hello")
    assert wherry_("fabric", "up", "fabric.yaml")[0] == 0
    assert "a1, a2" in wherry_("site", "list")[1] and "b1" in wherry_("fabric", "show")[1]
    assert wherry_("fabric", "down")[0] == 0
    assert wherry_("fabric", "show")[0] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: hello\nnodes: 2\nmemroy: 1GiB\n", "memory"),
        ("name: hello\nnodes: 2\nmemory: 512\n", "512MiB"),
        ("name: hello\nnodes: 2\nnodes: 3\n", "twice"),
        ("name: hello\nnodes: [\n", "YAML"),
        ("- hello\n", "mapping"),
        (yaml.safe_dump(FABRIC), "wherry fabric up"),
    ],
)
def test_invalid_file_is_refused_without_a_daemon(tmp_path: Path, wherry_: Wherry, text: str, expected: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    code, out, err = wherry_("up", str(path))
    assert code == 2 and not out and "INVALID_FILE" in err and expected in err and "next:" in err


def test_remedies_for_files_work_in_any_directory(service: Service, tmp_path: Path, wherry_: Wherry) -> None:
    (tmp_path / "list.yaml").write_text("- hello\n")
    for words, listed in (
        (("up", "examples/mixed.yaml"), "name: mixed"),
        (("fabric", "up", "two-sites.yaml"), "kind: fabric"),
        (("up", "no-such-file.yaml"), "hello.yaml"),
        (("up", str(tmp_path / "list.yaml")), "hello.yaml"),
    ):
        remedy = shlex.split(wherry_(*words)[2].partition("next: ")[2])
        shown = ["cat", remedy[-1]] if remedy[0] == "wherry" else remedy
        done = subprocess.run(shown, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert listed in done.stdout
        assert remedy[0] != "wherry" or remedy[1:-1] == [*words[:-1]]


def test_cluster_beyond_capacity_is_refused_and_leaves_nothing(service: Service, wherry_: Wherry) -> None:
    Path("big.yaml").write_text(yaml.safe_dump(CLUSTER | {"nodes": 100}))
    code, _, err = wherry_("up", "big.yaml")
    assert code == 4 and "NO_CAPACITY" in err
    assert json.loads(wherry_("status", "-o", "json")[1])["clusters"] == []


@pytest.mark.parametrize(
    ("words", "what", "why"),
    [
        ("move hello-1 --to a2 --max-rounds -3", "--max-rounds -3", "-3 is too small: at least 0"),
        ("move hello-1 --to a2 --bandwidth fast", "--bandwidth fast", "'fast' is not a rate; write it as 100Mbit/s"),
        ("move hello-1 --to a2 --bandwidth 0bit/s", "--bandwidth 0bit/s", "more than 0, at most 40Gbit/s"),
        ("move hello-1 --to a2 --parallel 65", "--parallel 65", "65 is too large: at most 64"),
        ("move hello-1 --to a2 --max-downtime 61s", "--max-downtime 61s", "too large: at most 60"),
        (f"move {'x' * 65} --to a2", "NODE", "too long: at most 64 characters"),
        ("balance hello --seconds 31s", "--seconds 31s", "31 is too large: at most 30"),
        ("balance hello --remaining 0s", "--remaining 0s", "0 is too small: more than 0"),
        ("job profile job-1 --seconds 0s", "--seconds 0s", "0 is too small: more than 0"),
        ("run hello -n 1 --expect 0s -- /bin/true", "--expect 0s", "0 is too small: more than 0"),
        ("site link set a b --latency 10", "a and b", "--latency: '10' is not a duration"),
        ("daemon provider http://h/x --client c", "ISSUER http://h/x", "write it as https://HOST/PATH"),
        ("daemon provider https://h --client c --url h", "--url h", "write it as https://HOST/PATH"),
    ],
)
def test_value_of_an_option_is_refused_by_its_name(
    service: Service, wherry_: Wherry, words: str, what: str, why: str
) -> None:
    code, _, err = wherry_(*words.split())
    command = words.split(" ")[0]
    assert code == 2 and err.startswith("error USAGE: ") and f"next: wherry {command}" in err
    assert what in err.splitlines()[0] and why in err and "--help" in err
    assert "the file" not in err and "rest.md" not in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stauts"], "status"),
        (["host", "lst"], "list"),
        (["up", "x.yaml", "--dryrun"], "--dry-run"),
        (["up"], "FILE"),
        (["run", "x", "--", "y"], "--ranks"),
        (["run", "x", "-n", "many", "--", "y"], "many"),
        (["run", "x", "-n", "0", "--", "y"], "at least one"),
        (["down"], "--all"),
        (["down", "x", "--all"], "exclude"),
        (["status", "-o", "yaml"], "json"),
    ],
)
def test_usage_errors_exit_with_2_and_a_suggestion(wherry_: Wherry, words: list[str], expected: str) -> None:
    code, out, err = wherry_(*words)
    assert code == 2 and not out and err.startswith("error USAGE") and expected in err


def test_json_is_one_document_with_a_schema(service: Service, wherry_: Wherry) -> None:
    wherry_("up", "hello.yaml")
    for words in (
        ["status"], ["status", "hello"], ["up", "hello.yaml"], ["up", "hello.yaml", "--dry-run"], ["node", "list"],
        ["node", "show", "hello-0"], ["host", "list"], ["host", "show", "a1"], ["job", "list"], ["op", "list"],
        ["event", "list"], ["fabric", "show"], ["site", "list"], ["version"], ["down", "hello"],
    ):  # fmt: skip
        code, out, _ = wherry_(*words, "-o", "json")
        assert code == 0 and json.loads(out)["schema"].startswith("wherry/"), words
    code, out, err = wherry_("job", "show", "none", "-o", "json")
    assert code == 3 and json.loads(out)["error"]["code"] == "NOT_FOUND" and err.startswith("error NOT_FOUND")


def test_every_command_has_help(wherry_: Wherry) -> None:
    code, out, _ = wherry_("--help")
    assert code == 0
    for name, _, _, _ in _COMMANDS:
        assert name in out
        assert wherry_(name, "--help")[0] == 0
    assert wherry_("version")[1] == wherry_("--version")[1] == f"{__version__}\n"


def test_the_manual_page_has_every_command_and_formats(wherry_: Wherry) -> None:
    code, page, err = wherry_("man")
    assert code == 0 and not err
    for name, _, _, _ in _COMMANDS:
        assert f".SS wherry {name}".replace("-", "\\-") in page
    assert ".SS wherry host drain\n" in page and ".B \\-\\-max\\-rounds\n" in page and ".B WHERRY_INSTANCE\n" in page
    if not shutil.which("groff"):
        pytest.skip("there is no groff")
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr and "Move a node to another host" in " ".join(done.stdout.split())


_HEAVY = ("httpx", "pydantic", "rich", "yaml", "fastapi", "sqlalchemy", "wherry.model.records")


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["--help"], [*_HEAVY[:2], *_HEAVY[3:], "wherry.client"]),
        (["status"], _HEAVY),
        (["status", "-o", "json"], _HEAVY),
        *[([noun, "list"], _HEAVY) for noun in ("node", "host", "job", "op", "event")],
        (["move", "none", "--to", "a1"], _HEAVY),
    ],
    ids=" ".join,
)
def test_what_a_command_does_not_need_is_not_imported(service: Service, words: list[str], spared: list[str]) -> None:
    """The imports were most of the time that a command took. Here it reads from a daemon, or is refused by it."""
    show = "_run; code = _run(sys.argv[1:]); print(*(set(sys.modules) & set(%r)), file=sys.stderr); sys.exit(code)"
    program = command_line.words_of(service.place, *words, main=show % (tuple(spared),))
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.returncode == (3 if words[0] == "move" else 0), done.stderr
    assert not done.stderr.splitlines()[-1]


def test_balance_shows_whether_automatic_balancing_is_on(service: Service, wherry_: Wherry) -> None:
    assert wherry_("up", "hello.yaml")[0] == 0
    code, out, _ = wherry_("balance", "--seconds", "10ms")
    assert code == 0 and "Balancing by the daemon is off." in out
    for more in (["hello"], ["--all"], ["--apply"], ["--remaining", "1m"]):
        code, _, expected = wherry_("balance", *more, "--auto", "on")
        assert code == 2 and "excludes other options" in expected
    assert wherry_("balance", "--auto", "on")[0] == 0
    code, out, _ = wherry_("balance", "hello", "--seconds", "10ms")
    assert "Balancing by the daemon is on" in out
    assert json.loads(wherry_("balance", "--seconds", "10ms", "-o", "json")[1])["auto"] is True


def test_profile_shows_messages_and_answers_over_links(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = tuple(
        NodeLoad(node=f"c-{i}", host=host, ranks=1, cpu=1.0, computing=0.5, waiting=0.5)
        for i, host in enumerate(["a1", "b1"])
    )
    flow = Flow(source="c-0", target="c-1", messages=30.0, bytes=100.0, turns=20.0)
    profile = Profile(
        cluster="c", jobs=("job-1",), time=0.0, seconds=3.0, ran=3.0, remaining=3.0, basis="", nodes=nodes,
        flows=(flow,),
    )  # fmt: skip
    _show_profile(profile, [Host(name=name, site=name[0], cores=1, memory=1) for name in ("a1", "b1")])
    expected = capsys.readouterr().out
    assert "30 messages/s, 20 answers/s" in expected and "ANSWERS" in expected
    assert [line.split()[-1] for line in expected.splitlines() if line.startswith("c-")] == ["20/s", "20/s"]


def test_unreadable_standard_input_ends_the_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the job would wait for the end of its input forever."""

    def read(_fd: int, _size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(job_follow.os, "read", read)
    assert job_follow.read_input() == b""
    assert "Input/output error" in capsys.readouterr().err


def test_lists_are_bounded_and_tell_how_to_see_more(service: Service, wherry_: Wherry) -> None:
    assert wherry_("up", "hello.yaml")[0] == 0
    for name, key in (("node", "nodes"), ("event", "events")):
        everything = json.loads(wherry_(name, "list", "--limit", "0", "-o", "json")[1])
        assert len(everything[key]) > 2 and not everything["more"]
        some = json.loads(wherry_(name, "list", "--limit", "2", "-o", "json")[1])
        assert some["more"] and some[key] == (everything[key][:2] if name == "node" else everything[key][-2:])
        code, out, err = wherry_(name, "list", "--limit", "2")
        assert code == 0 and "--limit 0" in err and "--limit" not in out
    assert wherry_("op", "list", "--limit", "1")[2] == ""
    assert wherry_("op", "list", "--limit=-1")[0] == 2
