"""`wherry job profile --program`: profiles of programs, by which their next runs are placed."""

from __future__ import annotations

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.cli.output import Output, age, emit, table
from wherry.client import Client, existing
from wherry.model.program import ProgramProfile

_PAIRS = 10
"""Pairs of groups that a profile lists."""
_NEXT = "wherry job profile --program"


def programs(name: str | None, forget: bool, output: Output) -> None:
    """Lists the profiles, shows those of `name` (a hash, its beginning, or a program's name), or forgets them."""
    if forget and name is None:
        raise Refused(Code.USAGE, "--forget needs the program's name or hash", "", f"{_NEXT} lists them")
    with existing("profile of a program") as client:
        found = _matching(client, name)
        if forget:
            forgotten = [client.forget_program(one.key) for one in found]
            emit(output, "programs", {"programs": forgotten}, lambda: _say_forgotten(forgotten))
        elif name is None or len(found) > 1:
            emit(output, "programs", {"programs": found}, lambda: _list(found))
        else:
            emit(output, "program", found[0], lambda: _show(found[0]))


def _matching(client: Client, name: str | None) -> list[ProgramProfile]:
    known = client.programs()
    if name is None:
        return known
    found = [one for one in known if one.program.name == name or one.key.startswith(name)]
    if not found:
        names = ", ".join(dict.fromkeys(one.program.name for one in known))
        raise Refused(Code.NOT_FOUND, f"there is no profile of {name!r}", f"known: {names}" if names else "", _NEXT)
    return found


def _list(found: list[ProgramProfile]) -> None:
    rows = [
        (
            one.program.name, one.key, one.program.ranks, one.kind, f"{one.imbalance:.2f}", age(one.time), one.runs,
            " ".join(one.program.arguments)[:40],
        )
        for one in found
    ]  # fmt: skip
    header = ("NAME", "HASH", "RANKS", "KIND", "IMBALANCE", "MEASURED", "RUNS", "ARGUMENTS")
    table(header, rows, "No program was measured yet: wherry run NAME -n 4 -- PROGRAM, for some seconds.")


def _show(one: ProgramProfile) -> None:
    line = " ".join((one.program.name, *one.program.arguments))
    print(f"{line}, {one.program.ranks} ranks: {one.kind}")
    print(f"{one.reason}.")
    runs = f"{one.runs} run{'' if one.runs == 1 else 's'}"
    print(
        f"Measured {age(one.time)} ago in job {one.job} for {one.seconds:.1f} s after {one.ran:.0f} s; {runs} so far."
    )
    rows = [(r.rank, r.group, f"{r.cpu:.2f}", f"{r.computing:.0%}", f"{r.waiting:.0%}") for r in one.ranks]
    table(("RANK", "GROUP", "CPUS", "COMPUTES", "WAITS"), rows, "no ranks")
    if one.flows is None:
        print("Messages were not counted.")
    members = {
        group: [rank.rank for rank in one.ranks if rank.group == group] for group in {r.group for r in one.ranks}
    }
    for flow in sorted(one.flows or (), key=lambda flow: -flow.bytes)[:_PAIRS]:
        ends = f"{_named(members[flow.source])} -> {_named(members[flow.target])}"
        print(f"  {ends}: {flow.messages:.0f} messages/s, {format_size(flow.bytes)}/s")


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _say_forgotten(found: list[ProgramProfile]) -> None:
    for one in found:
        print(f"The profile {one.key} of {one.program.name} is forgotten.")
