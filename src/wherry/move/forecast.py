"""Forecast of a move's cost, from a measurement of the node and from earlier moves.

Pure. Rates and the parts that do not depend on memory are learned from earlier moves whose memory the same engine
carried over the same kind of path, those of rounds from rounds, those of the freeze from downtimes. With a sample of
the node's writes, the rounds are gone through one by one, by the policy that will end them. Invariant: `basis` names
the source of the numbers; without earlier moves it states that rates are assumed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from wherry.base.units import format_size
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Move, Phase, Prediction, Round
from wherry.model.throttle import next_share
from wherry.move.ledger import bounds
from wherry.move.precopy_policy import MAX_ROUNDS, another_round, switches_to_post_copy
from wherry.node.protocol import Measured
from wherry.schedule.cost import SLOWER
from wherry.schedule.dirtying import written_in

_RECENT = 20
"""Number of past moves that are considered."""
_NEWEST = 9
"""Of them, so many give the parts that do not depend on sizes: these change with the other load of the hosts."""
_MIN_DIFFERENCE = 64 * 2**20
"""Least difference of moves in bytes from which a rate is fitted; below it, noise dominates."""
_ASSUMED_LEFT = 0.1
"""Assumed share of the memory that rounds leave for the freeze, without a sample and without earlier rounds."""
_ANY, _EACH_PROCESS, _EACH_MAPPING = 0.06, 0.006, 4e-5
"""Seconds, in proportion, of any freeze, for each process and for each mapping."""
_UNLIKE, _OLDER = 0.15, 0.9
"""A move whose node differs by this logarithm of the proportion counts for a factor of e less; a move that is older by
one move, for this share."""
_NOTICED = 0.001
"""Seconds of downtime that rounds must save to be worth their while."""


@dataclass(frozen=True)
class _Pace:
    """Assumptions about an engine without earlier moves: bytes per second of `sending`, and of `filling` after the
    thaw; seconds of the freeze for each byte that is looked at in it, but not sent, and of each round but the first;
    seconds `beside` all that; whether the rest of a round is known before the next one."""

    sending: float = 500e6
    looking: float = 0.0
    comparing: float = 0.0
    filling: float = math.inf
    beside: float = 1.0
    counts: bool = True


_LOOKING, _COMPARING = 15e-3 / 2**30, 1 / 8.5e9
_PAGER = _Pace(sending=1e9, looking=_LOOKING, filling=2e9, beside=0.3)
_PACES = {
    "pager": _PAGER,
    "pager-comparison": replace(_PAGER, looking=_LOOKING + _COMPARING, comparing=_COMPARING, counts=False),
}


@dataclass(frozen=True)
class _Costs:
    """Results of earlier moves, or assumptions: bytes per second that are sent in rounds and in the freeze, seconds for
    each round and for each freeze in addition, and (bytes per second, seconds) of all else; the share of its
    memory that rounds leave."""

    rounds: tuple[float, float]
    freeze: tuple[float, float]
    rest: tuple[float, float]
    left: float
    pace: _Pace


def forecast(
    measured: Measured,
    can_round: bool,
    moves: Sequence[Move],
    bandwidth: float | None = None,
    parameters: MigrationParameters | None = None,
    max_rounds: int | None = None,
) -> Prediction:
    """Prediction for a node as it was measured. `moves` are earlier ones over the same links, `bandwidth` is the move's
    rate in bit/s (None: unlimited), `max_rounds` the most rounds. With mode `auto` its `mode` is the one chosen."""
    parameters = parameters or MigrationParameters()
    compressed = measured.engine.startswith("pager") and parameters.compresses(bandwidth)
    past = [move for move in moves if _tells(move, measured.engine, compressed)][-_RECENT:]
    costs = _learned(measured, past, math.inf if bandwidth is None else bandwidth / 8)
    limit = MAX_ROUNDS if max_rounds is None else max_rounds
    stop = _figures(measured, [], costs)
    found, mode = stop, "stop"
    if can_round and (limit or parameters.mode == "post-copy") and parameters.mode != "stop":
        rounds = _rounds(measured, costs, parameters, limit)
        switches = bool(measured.engine) and switches_to_post_copy(_as_told(rounds, costs.pace), parameters)
        rounded = _figures(measured, rounds, costs, switches)
        saved, spent = stop.downtime - rounded.downtime, SLOWER * sum(round.seconds for round in rounds)
        if parameters.mode != "auto" or not measured.engine or saved >= max(_NOTICED, spent):
            found, mode = rounded, "pre-copy" if parameters.mode == "auto" else parameters.mode
    total, downtime, number = bounds(past, found.seconds, found.downtime)
    basis = _basis(len(past)) + (_grounds(measured, number) if measured.engine else "")
    if compressed:
        basis += "; the saving by compression is not known"
    return found.model_copy(
        update={"mode": mode, "basis": basis, "seconds_between": total, "downtime_between": downtime}
    )


def _tells(move: Move, engine: str, compressed: bool) -> bool:
    """True when the move shows the cost of another one by this engine: of bytes on the wire, so compressed or not."""
    done = move.phase == Phase.DONE and not move.error
    alike = move.engine == engine and bool(move.carriage and move.carriage.compressed) == compressed
    return bool(done and alike and move.downtime and move.total and move.bytes)


def _learned(measured: Measured, past: Sequence[Move], most: float) -> _Costs:
    pace = _PACES.get(measured.engine, _Pace())
    sent = [
        (round.bytes, round.seconds - pace.comparing * _compared(move, round)) for move in past for round in move.rounds
    ]
    rounds = _fit(sent, min(pace.sending, most), 0.0)
    stood = [(_foreseeable(move), (move.downtime or 0) - _looked(move, pace)) for move in past]
    rate, fixed = _fit(stood, min(rounds[0] if sent else pace.sending, most), measured.overhead)
    if measured.processes:
        beside = [(move, seconds - size / rate) for move, (size, seconds) in zip(past, stood, strict=True)]
        fixed = _of_similar(measured, beside, fixed)
    freeze = rate, fixed
    rest = _fit([(_memory(move), _beside(move)) for move in past], pace.filling, pace.beside)
    shares = [_foreseeable(move) / move.rounds[0].bytes for move in past if move.rounds and move.rounds[0].bytes]
    return _Costs(
        (min(rounds[0], most), rounds[1]),
        (min(freeze[0], most), freeze[1]),
        rest,
        min(median(shares), 1.0) if shares else _ASSUMED_LEFT,
        pace,
    )


def _rounds(measured: Measured, costs: _Costs, parameters: MigrationParameters, limit: int) -> list[Round]:
    """The rounds that the policy would make."""
    memory, (rate, each) = measured.memory, costs.rounds
    if not measured.written:
        left = int(memory * costs.left)
        return [
            Round(number=1, bytes=measured.bytes, seconds=each + measured.bytes / rate, dirty=left),
            Round(number=2, bytes=left, seconds=each + memory * costs.pace.comparing, dirty=left),
        ][:limit]
    found, left = list[Round](), measured.bytes
    slowed = parameters.mode == "auto-converge"
    while another_round(_as_told(found, costs.pace), limit, parameters, measured.written):
        seconds = each + left / rate + (memory * costs.pace.comparing if found else 0.0)
        share = next_share(_as_told(found, costs.pace)) if slowed else None
        dirty = min(int(written_in(measured.written, seconds * (share or 1.0))), memory)
        found.append(Round(number=len(found) + 1, bytes=left, seconds=seconds, dirty=dirty, share=share))
        left = dirty
    return found


def _as_told(rounds: list[Round], pace: _Pace) -> list[Round]:
    """The rounds as the engine will report them."""
    return rounds if pace.counts else [round.model_copy(update={"dirty": None}) for round in rounds]


def _figures(measured: Measured, rounds: Sequence[Round], costs: _Costs, post_copy: bool = False) -> Prediction:
    """The cost of a move with these rounds; with `post_copy` memory that they leave comes after the thaw."""
    frozen, looked_at, later, compared = measured.bytes, 0, 0, measured.files if rounds else 0
    if rounds and (left := rounds[-1].dirty) is not None:
        frozen, looked_at = left, measured.memory
    if post_copy:
        files = 0 if rounds else measured.files + measured.disk
        frozen, later, looked_at = files, frozen - files, measured.memory
    rate, fixed = costs.freeze
    downtime = fixed + frozen / rate + costs.pace.looking * looked_at + _COMPARING * compared
    filling, beside = costs.rest
    sent, later_seconds = sum(round.bytes for round in rounds) + frozen + later, later / costs.rounds[0]
    return Prediction(
        bytes=sent if measured.written or not rounds else measured.bytes + frozen + later,
        rounds=len(rounds),
        seconds=beside + measured.bytes / filling + sum(round.seconds for round in rounds) + downtime + later_seconds,
        downtime=downtime,
        basis="",
        engine=measured.engine,
        frozen=frozen,
        written=measured.written,
        later=later,
        later_seconds=later_seconds,
        share=min((round.share for round in rounds if round.share is not None), default=None),
        processes=measured.processes,
        mappings=measured.mappings,
        files=measured.files,
        disk=measured.disk,
    )


def _fit(points: Sequence[tuple[int, float]], rate: float, seconds: float) -> tuple[float, float]:
    """Bytes per second and seconds in addition, fitted to seconds by bytes, the oldest first.

    The median slope of pairs whose sizes differ enough, so that a disturbed move changes little; else the assumed
    `rate`. The seconds are the median of the newest. Without points the assumptions.
    """
    if not points:
        return rate, seconds
    slopes = [
        (more[1] - less[1]) / (more[0] - less[0])
        for less, more in itertools.combinations(sorted(points), 2)
        if more[0] - less[0] >= _MIN_DIFFERENCE
    ]
    if slopes and (slope := median(slopes)) > 0:
        return 1 / slope, max(median(time - size * slope for size, time in points[-_NEWEST:]), 0.0)
    return rate, median(max(time - size / rate, 0.0) for size, time in points[-_NEWEST:])


def _of_similar(measured: Measured, beside: Sequence[tuple[Move, float]], otherwise: float) -> float:
    """The seconds of a freeze beside sending, from those of earlier moves, the oldest first; `otherwise` when the moved
    objects are known of none.

    They are taken to be in proportion to the work of CRIU for the processes and their mappings, and the median of
    their ratio to it is taken, in which moves of similar nodes, and newer ones, count for more.
    """
    shape, known = _shape(measured), [one for one in beside if (told := one[0].predicted) and told.processes]
    weighed = list[tuple[float, float]]()
    for age, (move, seconds) in enumerate(reversed(known)):
        assert move.predicted
        theirs = _shape(move.predicted)
        weight = math.exp(-abs(math.log(theirs / shape)) / _UNLIKE) * _OLDER**age
        weighed.append((max(seconds, 0.0) / theirs, weight))
    return shape * _weighed_median(weighed) if weighed else otherwise


def _shape(node: Measured | Prediction) -> float:
    """The time of a freeze of the node beside sending, except for a factor that depends on machine and load."""
    return _ANY + _EACH_PROCESS * node.processes + _EACH_MAPPING * node.mappings


def _weighed_median(values: Sequence[tuple[float, float]]) -> float:
    """The median of values with weights."""
    half, sum = 0.5 * math.fsum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        sum += weight
        if sum >= half:
            return value
    raise AssertionError("there are no values")


def frozen_bytes(move: Move) -> int:
    """Bytes that a move sent while the node was frozen."""
    return move.bytes - sum(round.bytes for round in move.rounds) - (move.fetched.bytes if move.fetched else 0)


def _foreseeable(move: Move) -> int:
    """Bytes of a move's freeze that a forecast has: the rest after the rounds. Other bytes, CRIU's images and
    pages written while the last round was counted, belong to the parts that do not depend on them."""
    left = move.rounds[-1].dirty if move.rounds else None
    return frozen_bytes(move) if left is None else min(left, frozen_bytes(move))


def _memory(move: Move) -> int:
    return move.rounds[0].bytes if move.rounds else move.bytes


def _files(move: Move) -> int:
    return move.predicted.files if move.predicted else 0


def _without_files(move: Move) -> int:
    return _memory(move) - _files(move) - (move.predicted.disk if move.predicted else 0)


def _looked(move: Move, pace: _Pace) -> float:
    """Seconds of a freeze for memory that was examined and not sent."""
    if not move.rounds:
        return 0.0
    return pace.looking * _without_files(move) + _COMPARING * _files(move)


def _compared(move: Move, round: Round) -> int:
    """Bytes that were compared with those of the round before."""
    return _without_files(move) if round.number > 1 else 0


def _beside(move: Move) -> float:
    """Seconds of a move that were neither rounds nor downtime, nor spent waiting for links or for fetched memory."""
    waited = sum(round.seconds for round in move.rounds) + move.phases.get("link wait", 0.0)
    waited += move.fetched.seconds if move.fetched else 0.0
    return max((move.total or 0) - (move.downtime or 0) - waited, 0)


def _basis(number: int) -> str:
    if not number:
        return "assumed rates, as there are no earlier moves"
    return f"the last {number} moves" if number > 1 else "the last move"


def _grounds(measured: Measured, number: int) -> str:
    """The other sources of the numbers."""
    within = f"bounds from {number} forecasts" if number else "bounds assumed"
    if not measured.written:
        return f"; its memory was not sampled; {within}"
    seconds, written = measured.written[-1]
    return f"; it wrote {format_size(written)} in {seconds:.2g} s; {within}"
