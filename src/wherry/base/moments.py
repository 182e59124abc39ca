"""Times of the day as people write them: `2026-12-24T06:00`, `06:00`, `+2h`."""

from __future__ import annotations

from datetime import datetime, timedelta

from wherry.base.units import parse_duration

_MAX_AHEAD = 366 * 86400.0
"""Seconds within which an announced time must be."""
_FORMS = "write 2026-12-24T06:00, 06:00, or +2h"


def parse_moment(text: str, now: float) -> float:
    """Seconds since the epoch of a time that people wrote, in the zone of this process where it names none; `06:00` is
    the next one. ValueError for anything else, for a time before `now`, and for a time more than a year away."""
    at = _parsed(text.strip(), now)
    if at <= now:
        raise ValueError("that time is over")
    if at - now > _MAX_AHEAD:
        raise ValueError("that is more than a year away")
    return at


def moment(at: float) -> str:
    """`2026-12-24T06:00:00+01:00`, in the zone of this process."""
    return datetime.fromtimestamp(round(at)).astimezone().isoformat()


def _parsed(text: str, now: float) -> float:
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    try:
        if len(text) == len("06:00") and text[2] == ":":
            today = datetime.fromtimestamp(now)
            at = datetime.strptime(text, "%H:%M").replace(year=today.year, month=today.month, day=today.day)
            return (at if at > today else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(_FORMS) from None
