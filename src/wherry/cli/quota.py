"""Quotas as options and in tables."""

from __future__ import annotations

from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size, parse_size
from wherry.cli.output import table

_NONE = "none"


def quota_of(nodes: str | None, cores: str | None, memory: str | None, before: dict[str, Any]) -> dict[str, Any]:
    """The quota `before` with the given changes. USAGE for a value other than a number, a size or `none`."""
    quota = dict(before)
    for option, text, read in (("nodes", nodes, int), ("cores", cores, float), ("memory", memory, parse_size)):
        if text is not None:
            quota[option] = None if text == _NONE else _read(option, text, read)
    return quota


def _read(option: str, text: str, read: Any) -> Any:
    try:
        value = read(text)
    except ValueError as error:
        example = "16GiB" if option == "memory" else "8"
        what = f"--{option} {text} is no amount"
        raise Refused(Code.USAGE, what, str(error), f"--{option} {example}, or --{option} none") from None
    return value


def words(quota: dict[str, Any]) -> tuple[str, str, str]:
    """Nodes, cores and memory for a table."""
    memory = _NONE if quota["memory"] is None else format_size(quota["memory"])
    return _number(quota["nodes"]), _number(quota["cores"]), memory


def sentence(quota: dict[str, Any]) -> str:
    """A quota in words."""
    nodes, cores, memory = ("any" if word == _NONE else word for word in words(quota))
    return f"{nodes} nodes, {cores} cores and {memory}{'' if memory == 'any' else ' of'} memory"


def print_me(me: dict[str, Any]) -> None:
    """Prints an account, with its share of its quotas."""
    print(f"{me['name']}, role {me['role']}, uid {me['uid']}")
    shares = [("account", me["share"])] if me["share"] else []
    rows = []
    for kind, share in (*shares, *(("project", one) for one in me["projects"])):
        used, most = share["used"], words(share["quota"])
        now = (f"{used['nodes']}", f"{used['cores']:g}", format_size(used["memory"]))
        rows.append((kind, share["name"], *(f"{has} of {limit}" for has, limit in zip(now, most, strict=True))))
    table(("", "NAME", "NODES", "CORES", "MEMORY"), rows, "Users of the machine have no quota.")


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:g}"
