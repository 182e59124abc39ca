"""Findings of `wherry doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Health(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One line of the result. `limited`: something is slower or done otherwise; `missing`: something is refused."""

    name: str
    health: Health
    text: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """As JSON."""
        return {key: str(value) for key, value in asdict(self).items()}


def judged(name: str, good: bool, text: str, bad: str, remedy: str, otherwise: Health = Health.MISSING) -> Finding:
    """OK with `text` if it is good; else `otherwise` with `bad` and the remedy."""
    return Finding(name, Health.OK, text) if good else Finding(name, otherwise, bad, remedy)
