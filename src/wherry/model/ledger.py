"""The ledger of moves: what was foretold of each at its start, what came, and how far the two are apart."""

from __future__ import annotations

from wherry.model.records import Record


class Foretold(Record):
    """One figure of a move in seconds: as foretold, its bounds, and as it came."""

    foretold: float
    between: tuple[float, float] | None = None
    came: float


class LedgerEntry(Record):
    """A finished move. `gain`, where balancing began it: what its job was to gain by all moves of that plan, and what
    it gained, by its end where its user had told its duration, else by the speed that was measured after the moves;
    `unmeasured`, why neither is known."""

    move: str
    node: str
    created: float
    mode: str
    engine: str
    basis: str
    total: Foretold
    downtime: Foretold
    gain: Foretold | None = None
    unmeasured: str = ""


class Spread(Record):
    """How forecasts of one figure came out: their `number`; the `median` of what came by what was foretold; `error`,
    which nine of ten do not exceed, as a share of what was foretold; the share of them that came `within` their bounds.
    """

    number: int
    median: float | None = None
    error: float | None = None
    within: float | None = None


class Ledger(Record):
    """The entries, oldest first, and the spread of their errors; that of the gain has each plan once."""

    entries: tuple[LedgerEntry, ...]
    total: Spread
    downtime: Spread
    gain: Spread = Spread(number=0)
