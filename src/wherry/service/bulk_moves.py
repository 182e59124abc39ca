"""Moves several nodes in one operation, for drains and balancing.

Invariant: `move_many` returns or raises only when every move has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.model.records import Gain, Move
from wherry.move.moves import Moves
from wherry.schedule.cost import PARALLEL_MOVES
from wherry.service.task import Task

Refusal = Callable[[str, str], None]
"""Called with a node, and the host to which its move was refused."""


Check = Callable[[str], None]
"""Raises for a node that must not be moved after all."""


def no_precondition(_node: str) -> None:
    """For callers that hold the claims of all nodes."""


def ignore_refusal(_node: str, _host: str) -> None:
    """For callers that need no list of refused moves."""


def move_many(
    moves: Moves,
    task: Task,
    targets: Mapping[str, str],
    partly: str,
    refused: Refusal = ignore_refusal,
    check: Check = no_precondition,
    gains: Mapping[str, Gain] | None = None,
) -> list[dict[str, Any]]:
    """Moves nodes (name -> host), some at the same time; those of one cluster freeze together. PARTLY_DONE, with
    `partly`, names the nodes that did not move. `gains` (by node) go to the ledger."""
    if not targets:
        return []
    gangs = moves.gangs(targets, PARALLEL_MOVES)

    def one(item: tuple[str, str]) -> Move | str:
        node, target = item
        try:
            task.check()
            check(node)
            gang, gain = gangs.get(node), (gains or {}).get(node)
            return moves.run(node, target, progress=task.progress, cancelled=task.cancelled, gang=gang, gain=gain)
        except WherryError as error:
            if isinstance(error, Refused):
                refused(node, target)
            return f"{node}: {error}"
        finally:
            if gang := gangs.get(node):
                gang.leave(node)

    with ThreadPoolExecutor(PARALLEL_MOVES, thread_name_prefix="bulk-move") as pool:
        ended = list(pool.map(one, targets.items()))
    failed = [result for result in ended if isinstance(result, str)]
    if failed:
        code = Code.CANCELLED if task.cancelled() else Code.PARTLY_DONE
        raise Failed(code, partly, "; ".join(failed[:3]), "repeat the command")
    return [result.model_dump(mode="json") for result in ended if isinstance(result, Move)]
