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


def exchanged(study: Design, largest: int, above: int, few: int, budget: int) -> int:
    """Bytes that a ping-pong with these options sends in both directions: of the powers of two up to `largest`, as
    native/bench/pingpong.c counts repetitions."""

    def at_most(size: int, count: int, least: int) -> int:
        return max(least, min(budget // size, min(count, few) if size > above else count))

    sizes = [1 << power for power in range(largest.bit_length())]
    return sum(
        2 * size * (at_most(size, study.value(WARM), 0) + at_most(size, study.value(EXCHANGES), 1)) for size in sizes
    )


def told(study: Design) -> str:
    """How many, for remarks."""
    return f"{study.value(WARM)} exchanges that do not count, {study.value(EXCHANGES)} that do"
