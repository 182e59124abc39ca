"""The ledger of moves: the prediction of each at its start, the result, and the difference of the two."""

from __future__ import annotations

from wherry.model.records import Record


class Foretold(Record):
    """One figure of a move in seconds: as foretold, its bounds, and as it came."""

    foretold: float
    between: tuple[float, float] | None = None
    came: float


class LedgerEntry(Record):
    """A finished move. `gain`, where balancing began it: the predicted gain of its job by all moves of that plan, and
    the measured one, by its end where its user had given its duration, else by the speed that was measured after the
    moves; `unmeasured`, why neither is known."""

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
    """The errors of forecasts of one figure: their `number`; the `median` of result by forecast; `error`,
    which nine of ten do not exceed, as a share of the forecast; the share of results `within` their bounds.
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
