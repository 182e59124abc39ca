"""Quotas as options and in tables."""

from __future__ import annotations

from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size, format_span, parse_size
from wherry.cli.output import seconds_of, table

NONE, INSTANCE = "none", "instance"


def quota_of(
    nodes: str | None,
    cores: str | None,
    memory: str | None,
    hours: str | None,
    lease: str | None,
    longest_lease: str | None,
    before: dict[str, Any],
) -> dict[str, Any]:
    """The quota `before` with the given changes. USAGE for a value other than a number, a size, a duration or a word
    for none."""
    quota = dict(before)
    for key, given in (("lease", lease), ("longest_lease", longest_lease)):
        if given is not None:
            quota[key] = given if given == INSTANCE else lease_of(f"--{key.replace('_', '-')}", given)
    amounts = (("nodes", nodes, int), ("cores", cores, float), ("memory", memory, parse_size), ("hours", hours, float))
    for option, text, read in amounts:
        if text is not None:
            quota[option] = None if text == NONE else _read(option, text, read)
    return quota


def lease_of(option: str, text: str) -> float | None:
    """The seconds of a lease; None for `none`. USAGE for anything else."""
    return None if text == NONE else seconds_of(option, text)


def _read(option: str, text: str, read: Any) -> Any:
    try:
        value = read(text)
    except ValueError as error:
        example = "16GiB" if option == "memory" else "8"
        what = f"--{option} {text} is no amount"
        raise Refused(Code.USAGE, what, str(error), f"--{option} {example}, or --{option} none") from None
    return value


def words(quota: dict[str, Any]) -> tuple[str, str, str, str]:
    """Nodes, cores, memory and node-hours for a table."""
    memory = NONE if quota["memory"] is None else format_size(quota["memory"])
    return _number(quota["nodes"]), _number(quota["cores"]), memory, _number(quota["hours"])


def sentence(quota: dict[str, Any]) -> str:
    """A quota in words."""
    nodes, cores, memory, hours = ("any" if word == NONE else word for word in words(quota))
    room = f"{nodes} nodes, {cores} cores and {memory}{'' if memory == 'any' else ' of'} memory"
    room += "" if hours == "any" else f", {hours} node-hours"
    leases = [(key, quota[key]) for key in ("lease", "longest_lease") if quota[key] != INSTANCE]
    return room + "".join(f"; {key.replace('_', ' ')}: {lease_words(value)}" for key, value in leases)


def lease_words(seconds: float | None) -> str:
    """A lease in words."""
    return NONE if seconds is None else format_span(seconds)


def print_me(me: dict[str, Any]) -> None:
    """Prints an account, with its share of its quotas."""
    print(f"{me['name']}, role {me['role']}, uid {me['uid']}")
    shares = [("account", me["share"])] if me["share"] else []
    rows = []
    for kind, share in (*shares, *(("project", one) for one in me["projects"])):
        used, most = share["used"], words(share["quota"])
        now = (f"{used['nodes']}", f"{used['cores']:g}", format_size(used["memory"]), f"{used['hours']:.1f}")
        leases = f"{lease_words(share['leases']['usual'])}, at most {lease_words(share['leases']['longest'])}"
        rows.append((kind, share["name"], *(f"{has} of {limit}" for has, limit in zip(now, most, strict=True)), leases))
    table(("", "NAME", "NODES", "CORES", "MEMORY", "HOURS", "LEASE"), rows, "Users of the machine have no quota.")


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:g}"
