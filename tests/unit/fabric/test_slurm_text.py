"""The output of Slurm's programs is read: recorded outputs, and any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordedslurm import ALLOCATED, BLOCKED, DOWN, DRAINING, ENDING, IDLE, PENDING, RUNNING, UNKNOWN

from properties import examples
from wherry.fabric.slurm_text import (
    SlurmJob,
    Unreadable,
    parse_jobs,
    parse_left,
    parse_names,
    parse_nodes,
    parse_submitted,
)


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
