"""Slurm by its programs, of which stand-ins print recorded output: words, environment, what is ours, hosts, removal;
and the output that is read."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from recordedslurm import (
    ALLOCATED,
    BLOCKED,
    DOWN,
    DRAINING,
    ENDING,
    IDLE,
    NO_CONTROLLER,
    NO_JOB,
    NO_PARTITION,
    PENDING,
    RUNNING,
    UNKNOWN,
)

from properties import examples
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.paths import Instance
from wherry.cli.files import read_fabric
from wherry.fabric import slurm_hosts
from wherry.fabric.slurm import Slurm, environment
from wherry.fabric.slurm_text import (
    SlurmJob,
    Unreadable,
    parse_jobs,
    parse_left,
    parse_names,
    parse_nodes,
    parse_submitted,
)
from wherry.fabric.ssh_hosts import noted
from wherry.hostlink.link import HostLink
from wherry.model.allocations import Allocation
from wherry.model.spec.fabric import FabricSpec
from wherry.store.codec import dump, load

Say = Callable[..., None]
_STAND_IN = """\
#!/bin/sh
{{ printf '%s\\n' "{name}" "$@"; cat; env | grep -E '^(SLURM|SBATCH|SQUEUE)_'; echo --; }} >>{log}
cat {out}
cat {error} >&2
exit {code}
"""
FILE: dict[str, Any] = {
    "kind": "fabric", "version": 1, "name": "f", "driver": "slurm", "sites": [{"name": "a"}],
    "slurm": {"nodes": 2, "time": "90m", "partition": "batch", "account": "me"},
}  # fmt: skip


class Programs:
    """Stand-ins for Slurm's programs, which are first in the PATH; `calls` has their words and input."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._log = directory, directory / "log"

    def say(self, name: str, out: str = "", error: str = "", code: int = 0) -> None:
        """Sets the output of a program from now on, and its exit code."""
        files = {kind: self._directory / f"{name}.{kind}" for kind in ("out", "error")}
        files["out"].write_text(out)
        files["error"].write_text(error)
        program = self._directory / name
        program.write_text(_STAND_IN.format(name=name, log=self._log, code=code, **files))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[list[str]]:
        """The lines of each call: words, input, and variables of Slurm."""
        text = self._log.read_text() if self._log.exists() else ""
        return [call.splitlines() for call in text.split("--\n") if call]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    made = Programs(tmp_path)
    for name in ("squeue", "sbatch", "scancel", "scontrol"):
        made.say(name)
    return made


@pytest.fixture
def slurm() -> Slurm:
    return Slurm(Instance("main"), "0" * 32)


def lines(slurm: Slurm, text: str) -> str:
    """Recorded output of squeue, as of this instance's jobs."""
    return text.replace("wherry:abcdef", slurm.comment)


def test_allocation_is_asked_for_by_words_alone(
    programs: Programs, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the job in which the daemon was started is an option."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    programs.say("sbatch", "12\n")
    wants = FabricSpec.model_validate(FILE).slurm
    assert wants and slurm.ask(wants) == 12
    (call,) = programs.calls()
    assert {"--nodes=2", "--time=90", "--partition=batch", "--account=me", "--exclusive", "--no-kill"} <= {*call}
    assert "--job-name=wherry-main" in call and f"--comment={slurm.comment}" in call and "exec sleep infinity" in call
    assert "0" * 32 not in " ".join(call)
    assert [line for line in call if line.startswith(("SLURM_", "SBATCH_"))] == ["SLURM_CONF=/etc/slurm/slurm.conf"]
    assert "SLURM_JOB_ID" not in environment()


def test_refusal_is_what_slurm_says(programs: Programs, slurm: Slurm) -> None:
    programs.say("sbatch", error=NO_PARTITION, code=1)
    wants = FabricSpec.model_validate(FILE).slurm
    assert wants
    with pytest.raises(Failed, match="Invalid partition name"):
        slurm.ask(wants)


def test_own_jobs_have_name_and_comment(programs: Programs, slurm: Slurm) -> None:
    programs.say("squeue", lines(slurm, RUNNING) + "9|RUNNING|1:00|h2|None|wherry:another\n10|PENDING|1:00||None|\n")
    assert [job.id for job in slurm.own()] == [1]
    assert {"--me", "--name=wherry-main", "--noheader"} <= {*programs.calls()[0]}
    assert Slurm(Instance("main"), "1" * 32).own() == []


def test_silence_is_no_answer(programs: Programs, slurm: Slurm) -> None:
    programs.say("squeue", error=NO_CONTROLLER, code=1)
    for ask in (slurm.own, lambda: slurm.job(1)):
        with pytest.raises(Failed, match="Unable to contact"):
            ask()
    programs.say("squeue", "no line of squeue\n")
    with pytest.raises(Failed, match="squeue printed"):
        slurm.own()


def test_job_that_is_gone(programs: Programs, slurm: Slurm) -> None:
    programs.say("squeue", error=NO_JOB, code=1)
    assert slurm.job(99) is None
    programs.say("squeue")
    assert slurm.job(99) is None
    programs.say("squeue", RUNNING)
    found = slurm.job(1)
    assert found and found.runs


def test_names_that_are_none_are_not_given_to_programs(programs: Programs, slurm: Slurm) -> None:
    programs.say("scontrol", "h1\nh2\n")
    assert slurm.names("h[1-2]") == ["h1", "h2"] and slurm.names("") == []
    with pytest.raises(Failed, match="cannot be"):
        slurm.names("-o x")


def test_hosts_are_those_that_slurm_describes(programs: Programs, slurm: Slurm) -> None:
    other = UNKNOWN.replace("10.9.9.1", "10.9.9.2")
    apart = IDLE.replace("h1", "h3").replace("10.9.9.1", "10.9.9.3").replace("Partitions=batch", "Partitions=gpu,big")
    programs.say("scontrol", f"{IDLE}\n{other}\n{apart}\n")
    spec = FabricSpec.model_validate(FILE | {"lease": "5m"})
    found = slurm_hosts.expanded(spec, slurm, None)
    assert [(host.name, host.wire, host.cores, host.memory) for host in found.hosts] == [
        ("h1", "10.9.9.1", 2, 1000 << 20),
        ("h2", "10.9.9.2", 2, 1000 << 20),
    ]
    assert found.hosts[0].uri == "ssh://root@10.9.9.1"
    assert load(FabricSpec, dump(found)) == found
    programs.say("scontrol", f"{IDLE}\n")
    assert slurm_hosts.expanded(spec, slurm, found) == found  # while it is up
    programs.say("scontrol", f"{IDLE}\n{UNKNOWN}\n")
    with pytest.raises(Refused, match="same address"):
        slurm_hosts.expanded(spec, slurm, None)
    programs.say("scontrol", IDLE.replace("=h1", "=Node_1"))
    with pytest.raises(Refused, match="small letters"):
        slurm_hosts.expanded(spec, slurm, None)
    programs.say("scontrol", apart)
    with pytest.raises(Refused, match="partition batch") as refused:
        slurm_hosts.expanded(spec, slurm, None)
    assert refused.value.why == "its partitions are big, gpu"


def test_more_nodes_than_there_are_is_refused(programs: Programs, slurm: Slurm) -> None:
    """Slurm would take it, and have it wait for ever."""
    programs.say("scontrol", f"{IDLE}\n")
    listed = [{"name": "h1", "site": "a", "cores": 2, "memory": "1GiB", "uri": "ssh://root@127.0.0.1"}]
    for hosts in ([], listed):
        with pytest.raises(Refused, match="no allocation of 2 nodes") as refused:
            slurm_hosts.expanded(FabricSpec.model_validate(FILE | {"hosts": hosts}), slurm, None)
        assert refused.value.code is Code.NO_CAPACITY


def test_hosts_of_an_allocation_that_exists(programs: Programs, slurm: Slurm) -> None:
    spec = FabricSpec.model_validate(FILE | {"slurm": {"job": 1}})
    programs.say("squeue", error=NO_JOB, code=1)
    programs.say("scontrol", f"{IDLE}\n")
    with pytest.raises(Refused, match="it has ended"):
        slurm_hosts.expanded(spec, slurm, None)
    nowhere = FabricSpec.model_validate(FILE | {"slurm": {}})
    with pytest.raises(Refused, match="names no allocation"):
        slurm_hosts.expanded(nowhere, slurm, None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"slurm": {"nodes": 2}}, "has both"),
        ({"slurm": {"nodes": 2, "time": "8h", "job": 3}}, "leave one out"),
        ({"slurm": {"job": 3, "partition": "x"}}, "asked for"),
        ({"slurm": {"nodes": 2, "time": "8h", "partition": "-x"}}, "pattern"),
        ({"slurm": {"nodes": 2, "time": "8h", "account": "a b"}}, "pattern"),
        ({"slurm": {"nodes": 2, "time": "8h", "leave": "5s"}}, "at least 30s"),
        ({"slurm": {"nodes": 2, "time": "4m", "leave": "2m"}}, "before the next allocation"),
        ({"slurm": {"nodes": 2, "time": "10s"}}, "from a minute"),
        ({"slurm": {"nodes": 2, "time": "8h", "user": "-l"}}, "pattern"),
        ({"slurm": None}, "slurm: is for driver"),
        ({"driver": "ssh"}, "at least one"),
    ],
)
def test_file_that_names_no_allocation_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FabricSpec.model_validate(FILE | change)


def test_file_in_an_allocation_is_of_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(json.dumps(FILE | {"slurm": {}}))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert read_fabric(file)["slurm"] == {}
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert read_fabric(file)["slurm"] == {"job": 77}
    file.write_text(json.dumps(FILE))
    assert "job" not in read_fabric(file)["slurm"]


class Links:
    """No connections, and none is made."""

    def __init__(self) -> None:
        self.lost, self.stood = set[str](), list[str]()

    def link(self, host: str) -> HostLink:
        raise AssertionError(f"{host} is contacted")

    reach = link

    def answers(self, host: str) -> bool:
        return host not in self.lost

    def lose(self, host: str) -> None:
        self.lost.add(host)

    def end(self, host: str) -> None:
        pass

    def close(self) -> None:
        pass


def fabric(slurm: Slurm, links: Links, present: set[str]) -> slurm_hosts.SlurmHostsFabric:
    hosts = [
        {"name": f"h{n}", "site": "a", "cores": 2, "memory": "1GiB", "uri": f"ssh://root@127.0.0.{n}"} for n in (1, 2)
    ]
    spec = FabricSpec.model_validate(FILE | {"hosts": hosts})
    return slurm_hosts.SlurmHostsFabric(spec, Instance("main"), links, slurm, present)


def test_hosts_that_are_not_allocated_are_not_contacted(programs: Programs, slurm: Slurm) -> None:
    links, present = Links(), {"h1"}
    made = fabric(slurm, links, present)
    assert [(host.name, host.down, host.absent) for host in made.hosts()] == [("h1", False, False), ("h2", True, True)]
    assert links.lost == {"h2"} and present == {"h1"}
    made.restore(["h2", "h9"])
    assert links.lost == {"h1"} and present == {"h2"}
    assert made.repair() == []
    with pytest.raises(Refused, match="has not allocated it"):
        made.set_lost("h1", False)


def test_nodes_that_are_no_hosts_are_not_asked_for(programs: Programs, slurm: Slurm) -> None:
    """They could not join: the file does not list them, or they came to the partition later."""
    apart = IDLE.replace("=h1", "=h4").replace("Partitions=batch", "Partitions=gpu")
    programs.say("scontrol", f"{IDLE}\n{IDLE.replace('=h1', '=h3')}\n{apart}\n")
    programs.say("sbatch", "12\n")
    assert fabric(slurm, Links(), set()).ask() == 12
    assert [word for word in programs.calls()[-1] if "exclude" in word] == ["--exclude=h3"]
    programs.say("scontrol", f"{IDLE}\n")
    fabric(slurm, Links(), set()).ask()
    assert not [word for word in programs.calls()[-1] if "exclude" in word]


def test_allocations_with_their_hosts(programs: Programs, slurm: Slurm) -> None:
    made = fabric(slurm, Links(), {"h1"})
    programs.say("squeue", lines(slurm, RUNNING.replace("|h1|", "|h[1,9]|")))
    programs.say("scontrol", "h1\nh9\n")
    assert made.look() == [Allocation(1, True, ("h1",), 598.0)]
    programs.say("scontrol", f"{DRAINING}\n")
    assert made.troubles() == {"h1": "DRAIN, disk is bad"}
    assert programs.calls()[-1][:5] == ["scontrol", "--oneliner", "show", "node", "h1"]  # and nobody else's
    assert made.look() == [Allocation(1, True, ("h1",), 598.0)]  # names are asked for once
    programs.say("squeue", lines(slurm, PENDING))
    assert made.look() == [Allocation(1, False), Allocation(2, False, why="Priority")]


def test_host_with_nodes_is_cleared_before_it_counts_as_lost_and_again(
    programs: Programs, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, as its nodes may be made elsewhere then; again, as something may have been under way there."""
    links = Links()
    made, lost = fabric(slurm, links, {"h1", "h2"}), list[bool]()
    monkeypatch.setattr(made, "_remove_all", lambda host: lost.append(host in links.lost))
    made.dismiss("h1", empty=False)
    assert lost == [False, True] and made.present == {"h2"}
    made.dismiss("h2", empty=True)
    assert lost == [False, True, True]


def test_host_that_is_silent_with_nodes_stays(
    programs: Programs, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links()
    made = fabric(slurm, links, {"h1"})

    def silent(host: str) -> None:
        raise LostContact(Code.UNREACHABLE, host, "no route")

    monkeypatch.setattr(made, "_remove_all", silent)
    with pytest.raises(LostContact):
        made.dismiss("h1", empty=False)
    assert made.present == {"h1"} and "h1" not in links.lost
    made.dismiss("h1", empty=True)
    assert made.present == set() and links.lost == {"h1", "h2"}
    assert noted(Instance("main")).keys() == {"h1"}  # something may be there: `repair` and `down --all` look


def test_jobs_are_cancelled_by_the_note_alone(programs: Programs, slurm: Slurm, tmp_path: Path) -> None:
    """As after kill -9, and without the database."""
    instance = Instance("main")
    assert slurm_hosts.sweep(instance) == {} and programs.calls() == []
    own = slurm_hosts.slurm_of(instance)
    slurm_hosts.note(instance).write_text("")
    programs.say("squeue", error=NO_CONTROLLER, code=1)
    assert "Unable to contact" in slurm_hosts.sweep(instance)["slurm"]
    assert slurm_hosts.used(instance) == {"slurm": "jobs wherry-main"}
    programs.say("squeue", lines(own, RUNNING))
    gone = tmp_path / "squeue.out"
    (tmp_path / "scancel").write_text(f"#!/bin/sh\n[ $1 = 1 ] && : >{gone}\n")
    assert slurm_hosts.sweep(instance) == {}
    assert slurm_hosts.used(instance) == {} and not slurm_hosts.note(instance).exists()


def test_job_that_does_not_end_is_said(programs: Programs, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_hosts, "_ENDS", 0.0)
    programs.say("squeue", lines(slurm, RUNNING))
    with pytest.raises(Failed, match="does not end") as raised:
        slurm_hosts.end_own(slurm, lambda _: None)
    assert raised.value.code is Code.TIMED_OUT and raised.value.next == "scancel 1"


# The output of Slurm's programs is read: recorded outputs, and any text.


def test_jobs_as_recorded() -> None:
    first, second = parse_jobs(PENDING)
    assert first == SlurmJob(1, "PENDING", 600.0, "", "", "wherry:abcdef")
    assert second.waits and not second.runs and second.reason == "Priority"
    (running,) = parse_jobs(RUNNING)
    assert running.runs and not running.waits and (running.left, running.nodes) == (598.0, "h1")
    (ending,) = parse_jobs(ENDING)
    assert not ending.runs and not ending.waits
    assert parse_jobs(BLOCKED)[0].reason.startswith("Nodes required")
    assert parse_jobs("") == []


def test_nodes_as_recorded() -> None:
    idle, unknown, allocated, draining, down = parse_nodes("\n".join([IDLE, UNKNOWN, ALLOCATED, DRAINING, DOWN]))
    assert (idle.name, idle.address, idle.cpus, idle.memory) == ("h1", "10.9.9.1", 2, 1000 << 20)
    assert idle.partitions == ("batch",)
    assert [node.trouble for node in (idle, unknown, allocated)] == ["", "", ""]
    assert draining.trouble == "DRAIN, disk is bad" and draining.states == {"ALLOCATED", "DRAIN"}
    assert down.trouble == "DOWN, gone | away"


@pytest.mark.parametrize(
    ("state", "trouble"),
    [
        ("DOWN*", "DOWN, NOT_RESPONDING"),
        ("ALLOCATED*", "NOT_RESPONDING"),
        ("MIXED+CLOUD", ""),
        ("IDLE~", ""),
        ("MIXED+DRAIN", "DRAIN"),
        ("IDLE+MAINT", "MAINT"),
    ],
)
def test_states_of_nodes(state: str, trouble: str) -> None:
    assert parse_nodes(IDLE.replace("State=IDLE", f"State={state}"))[0].trouble == trouble


def test_reason_does_not_pass_for_other_keys() -> None:
    """A user who may write it could else pass a node off as another one."""
    (node,) = parse_nodes(f"{IDLE} Reason=x NodeName=h9 State=DOWN NodeAddr=10.0.0.9 [root@2026-11-27T06:29:06]")
    assert (node.name, node.address, node.states) == ("h1", "10.9.9.1", {"IDLE"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("9:58", 598.0), ("1:00:00", 3600.0), ("2-03:04:05", 183845.0), ("0:00", 0.0), ("INVALID", 0.0),
        ("UNLIMITED", None), ("NOT_SET", None), ("N/A", None),
    ],
)  # fmt: skip
def test_time_that_is_left(text: str, seconds: float | None) -> None:
    assert parse_left(text) == seconds


def test_numbers_of_jobs() -> None:
    assert parse_submitted("12\n") == 12 and parse_submitted("12;cluster\n") == 12
    assert parse_jobs("12_3|RUNNING|1:00|h1|None|\n")[0].id == 12
    for wrong in ("", "x", "12 13", "-1", "12;", "Submitted batch job 12"):
        with pytest.raises(Unreadable):
            parse_submitted(wrong)


@pytest.mark.parametrize("text", ["1|RUNNING|1:00|h1|None", "x|RUNNING|1:00|h1|None|", "1|RUNNING|soon|h1|None|", "|"])
def test_other_lines_of_squeue_are_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_jobs(text)


@pytest.mark.parametrize(
    "line",
    ["NodeName=h1", IDLE.replace("CPUTot=2", "CPUTot=two"), IDLE.replace("State=IDLE", "State="), "Node h9 not found"],
)
def test_other_lines_of_scontrol_are_refused(line: str) -> None:
    with pytest.raises(Unreadable):
        parse_nodes(line)


_LINES = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from([*IDLE.split(" "), "State=DOWN", "Reason=a b", "=", "X="]), max_size=30).map(" ".join),
    st.lists(st.sampled_from([*RUNNING.split("|"), "", "INVALID", "2-0:00:00"]), max_size=9).map("|".join),
)


@given(_LINES)
@settings(max_examples=examples(500))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_jobs, parse_nodes, parse_submitted, parse_left, parse_names):
        try:
            parse(text)  # type: ignore[operator]
        except Unreadable:
            continue


@given(st.integers(0, 10**6), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
@settings(max_examples=examples(100))
def test_times_as_squeue_writes_them(days: int, hours: int, minutes: int, seconds: int) -> None:
    text = f"{minutes:02}:{seconds:02}"
    text = f"{days % 10**6}-{hours:02}:{text}" if days else f"{hours}:{text}" if hours else text
    total = (((days % 10**6) * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_left(text) == (total if days else (hours * 60 + minutes) * 60 + seconds)
