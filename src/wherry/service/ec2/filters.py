"""Filters and pages of described objects.

A filter's values are patterns (`*`, `?`, `\\`), one of which must match one of the values that an object has under its
name; all filters must match. Pure functions.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from wherry.service.ec2.errors import Ec2Error, invalid

One = TypeVar("One")
Facts = Mapping[str, Collection[str]]
"""The values of an object under each name of a filter."""
_MOST_FILTERS, _MOST_VALUES, _LONGEST_VALUE = 50, 200, 255


def tag_facts(tags: Mapping[str, str]) -> dict[str, Collection[str]]:
    """The facts of an object's tags."""
    own = {f"tag:{key}": (value,) for key, value in tags.items()}
    return {**own, "tag-key": tuple(tags), "tag-value": tuple(tags.values())}


def filtered(
    found: Iterable[One], filters: Sequence[Mapping[str, Any]], names: Collection[str], facts: Callable[[One], Facts]
) -> list[One]:
    """The objects that match all filters. `names` are the filters that there are, beside those of tags."""
    if len(filters) > _MOST_FILTERS:
        raise Ec2Error("FilterLimitExceeded", f"A request has at most {_MOST_FILTERS} filters")
    wanted: list[tuple[str, list[Callable[[str], bool]]]] = []
    for one in filters:
        name, values = str(one.get("Name", "")), list(one.get("Values", ()))
        if name not in names and name not in ("tag-key", "tag-value") and not (name.startswith("tag:") and name[4:]):
            raise Ec2Error("InvalidParameterValue", f"The filter '{name[:64]}' is invalid. Known: {', '.join(names)}")
        if not values or len(values) > _MOST_VALUES or any(len(value) > _LONGEST_VALUE for value in values):
            why = f"A filter has 1 to {_MOST_VALUES} values of at most {_LONGEST_VALUE} characters"
            raise invalid(f"Filter.{name[:64]}", "", why)
        wanted.append((name, [matcher(value) for value in values]))

    def matches(one: One) -> bool:
        told = facts(one)
        return all(any(like(value) for like in likes for value in told.get(name, ())) for name, likes in wanted)

    return [one for one in found if matches(one)] if wanted else list(found)


def matcher(text: str) -> Callable[[str], bool]:
    """Whether a value is like a filter's. Each run of characters between two `*` is looked for once, at its first
    place, so no pattern takes longer than its length times the value's."""
    runs: list[str] = [""]
    plain, is_plain = "", True
    for token in re.findall(r"\\.|\*+|.", text, re.DOTALL):
        if token[0] == "*":
            runs.append("")
            is_plain = False
        elif token == "?":
            runs[-1] += "."
            is_plain = False
        else:
            plain += token[-1]
            runs[-1] += re.escape(token[-1])
    if is_plain:
        return plain.__eq__
    first, *between = runs
    last = f".*{between.pop()}" if between else ""
    found = re.compile(first + "".join(f"(?>.*?{run})" for run in between) + last, re.DOTALL)
    return lambda value: found.fullmatch(value) is not None


def page(
    found: Iterable[One], key: Callable[[One], str], words: Mapping[str, Any], least: int = 5
) -> tuple[list[One], str | None]:
    """One page in the order of `key`, and the token of the next one (None: there is none). A page continues after
    the key of the last one, whatever came and went meanwhile."""
    ordered = sorted(found, key=key)
    if token := words.get("NextToken"):
        after = _key_of(token)
        ordered = [one for one in ordered if key(one) > after]
    most = words.get("MaxResults")
    if most is None:
        return ordered, None
    if not least <= most <= 1000:
        raise invalid("MaxResults", str(most), f"It must be {least} to 1000")
    more = len(ordered) > most
    return ordered[:most], _token_of(key(ordered[most - 1])) if more else None


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _key_of(token: str) -> str:
    try:
        return base64.b64decode(token.encode("ascii"), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("NextToken", token, "It is none of ours") from None
