"""The list of benchmarks, and their creation by name with a user's settings."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from wherry.base.errors import Code, Refused
from wherry.lab.bench.balance import Balance
from wherry.lab.bench.balance_overhead import BalanceOverhead
from wherry.lab.bench.cluster_cost import ClusterCost
from wherry.lab.bench.collectives import Collectives
from wherry.lab.bench.collectives_simulated import CollectivesSimulated
from wherry.lab.bench.definition import Benchmark
from wherry.lab.bench.engine import Engine
from wherry.lab.bench.launcher import Launcher
from wherry.lab.bench.link_moves import LinkMoves
from wherry.lab.bench.links import Links
from wherry.lab.bench.many_moves import ManyMoves
from wherry.lab.bench.move import Move
from wherry.lab.bench.vm_move import MoveByVirsh
from wherry.model.spec.explain import explain

BENCHMARKS: tuple[type[Benchmark], ...] = (
    Engine,
    MoveByVirsh,
    ClusterCost,
    Links,
    LinkMoves,
    ManyMoves,
    Move,
    Balance,
    BalanceOverhead,
    Collectives,
    CollectivesSimulated,
    Launcher,
)


def again(header: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a file of samples. Refused when this version has it no more, or with other settings."""
    name = str(header.get("benchmark"))
    kind = type(find(name))
    try:
        return kind(**header["settings"])
    except (LookupError, TypeError, ValueError) as error:
        what = f"the benchmark {name} of these samples is not the one of this version"
        raise Refused(Code.INVALID_FILE, what, str(error), f"wherry bench run {name}") from None


def find(name: str, *, quick: bool = False, settings: Sequence[str] = ()) -> Benchmark:
    """Creates a benchmark by its name with settings `FIELD=VALUE`, which override those of --quick. Raises NOT_FOUND
    with the nearest name, or USAGE for an unknown setting or an invalid value.
    """
    kinds = {kind.name: kind for kind in BENCHMARKS}
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, 1)
        why = f"did you mean {near[0]}?" if near else f"there are: {', '.join(kinds)}"
        raise Refused(Code.NOT_FOUND, f"there is no benchmark {name}", why, "wherry bench list")
    kind = kinds[name]
    chosen = dict(kind.quick_settings) if quick else {}
    types, fields = get_type_hints(kind), {field.name for field in dataclasses.fields(kind)}
    for setting in settings:
        field, _, text = setting.partition("=")
        if field not in fields:
            raise Refused(Code.USAGE, f"{name} has no setting {field}", f"it has: {', '.join(sorted(fields))}")
        try:
            chosen[field] = TypeAdapter(types[field]).validate_python(text)
        except ValidationError as error:
            what = f"--set {setting}: no value of {field}"
            raise Refused(Code.USAGE, what, explain(error.errors()[0]), f"wherry bench run {name}") from None
    try:
        return kind(**chosen)
    except ValueError as error:
        raise Refused(Code.USAGE, f"{name} cannot run so", str(error), f"wherry bench run {name}") from None
