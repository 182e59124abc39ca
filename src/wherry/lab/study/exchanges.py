"""How often a ping-pong repeats, as settings: of the studies that run `wherry-pingpong`."""

from __future__ import annotations

from wherry.lab.study.design import Design
from wherry.lab.study.settings import Setting

EXCHANGES = Setting("exchanges", "exchanges of each size that count", 100, 100, most=100_000)
WARM = Setting("exchanges.warm", "exchanges of each size before them that do not count", 30, 30, least=0, most=100_000)
FEW = Setting("exchanges.few", "exchanges of the largest sizes, at most, of both", 10, 10, most=100_000)
SETTINGS = (EXCHANGES, WARM, FEW)


def words(study: Design, above: int, few: int) -> list[str]:
    """Options of the ping-pong; sizes above `above` bytes are exchanged `few` times."""
    counts = ["--repeat", str(study.value(EXCHANGES)), "--warm", str(study.value(WARM))]
    return [*counts, "--above", str(above), "--few", str(few)]


def told(study: Design) -> str:
    """How many, for remarks."""
    return f"{study.value(WARM)} exchanges that do not count, {study.value(EXCHANGES)} that do"
