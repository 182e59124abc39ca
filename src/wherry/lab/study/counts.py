"""Ranks, sites and hosts of a study as options of their own beside `--set`.

Invariant: an option is another way to type settings that a study has; others are refused, with a list of those it has.
"""

from __future__ import annotations

from collections.abc import Mapping

from wherry.base.errors import Code, Refused
from wherry.lab.study.design import Design


def option_of(study: type[Design], setting: str) -> str:
    """The option that sets this setting, as it is typed; empty when there is none."""
    return next((f"--{name}" for name, those in study.options.items() if setting in {one.name for one in those}), "")


def with_counts(study: type[Design], given: Mapping[str, str], counts: Mapping[str, int | None]) -> dict[str, str]:
    """The given settings, with the settings for which the options (name -> number, None: not typed) stand. Refused
    (USAGE) for an option that the study has not, and for a setting that was typed twice."""
    found = dict(given)
    for name, number in counts.items():
        if number is None:
            continue
        if name not in study.options:
            there = ", ".join(
                f"--{option} ({', '.join(one.name for one in those)})" for option, those in study.options.items()
            )
            why = f"it has {there}" if there else "it compares these counts itself: it has no such option"
            raise Refused(Code.USAGE, f"the study {study.name} has no --{name}", why, f"wherry study show {study.name}")
        for setting in study.options[name]:
            if setting.name in given:
                what, why = f"--{name} and --set {setting.name} are the same", "only one of them can count"
                again = f"wherry study run {study.name} --set {setting.name}={given[setting.name]}"
                raise Refused(Code.USAGE, what, why, again)
            found[setting.name] = str(number)
    return found
