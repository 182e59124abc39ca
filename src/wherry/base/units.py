"""Parses and formats sizes, durations, rates and shares. Sizes, durations and rates must have a unit."""

from __future__ import annotations

import math
import re

_SIZE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "kB": 10**3}
_TIME = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/%]*)\s*")


def _parse(text: str, table: dict[str, float] | dict[str, int], noun: str, example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if not match or match[2] not in table:
        raise ValueError(f"{text!r} is not a {noun}; write it as {example} (units: {', '.join(filter(None, table))})")
    value = float(match[1]) * table[match[2]]
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]}… is larger than any {noun}")
    return value


def parse_size(text: str) -> int:
    """Bytes of `"512MiB"`, `"4GiB"`, `"1.5GB"`. ValueError for anything else."""
    return int(_parse(text, _SIZE, "size", "512MiB"))


def parse_duration(text: str) -> float:
    """Seconds of `"30s"`, `"20ms"`, `"8h"`. ValueError for anything else."""
    return _parse(text, _TIME, "duration", "30s")


def parse_rate(text: str) -> int:
    """Bits per second of `"100Mbit/s"`, `"1Gbit/s"`. ValueError for anything else."""
    return round(_parse(text, _RATE, "rate", "100Mbit/s"))


def parse_share(text: str) -> float:
    """The fraction of `"1%"` or `"0.01"`. ValueError for anything else."""
    return _parse(text, {"%": 0.01, "": 1.0}, "share", "1%")


def format_rate(bits: float) -> str:
    """`943e6` -> `943 Mbit/s`."""
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if bits < 999.5:  # more would be rounded to 1e+03
            return f"{bits:.3g} {unit}"
        bits /= 1000
    return f"{bits:.3g} Gbit/s"


def format_size(size: float) -> str:
    """`1536` -> `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_span(seconds: float) -> str:
    """`28800` -> `8h`, `129600` -> `1.5d`, `20` -> `20s`: one unit, as people write it."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s"


def format_duration(seconds: float) -> str:
    """`0.0613` -> `61.3 ms`; `83.2` -> `83.2 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s"
