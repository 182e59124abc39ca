"""Whether nodes answer, before anything is started on them.

Invariant: nodes are asked at the same time; a node in a move for as long as the move may freeze it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from wherry.base.errors import Code, Failed
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.records import Cluster
from wherry.node.protocol import LONGEST_FREEZE

_READY_SECONDS = 30.0  # between two looks whether a node is frozen in a move
_PARALLEL = 32
_CHECK_EVERY = 0.1


def require_ready(
    cluster: Cluster,
    nodes: Sequence[tuple[str, AgentEndpoint]],
    check: Callable[[], None],
    moving: Callable[[str], bool],
) -> None:
    """Failed, naming the nodes, when some do not answer on their control port, nor are `moving`."""
    ended = threading.Event()

    def ping(node: tuple[str, AgentEndpoint]) -> tuple[str, str]:
        until = time.monotonic() + LONGEST_FREEZE
        while True:
            moved = moving(node[0])
            try:
                node[1].ping(_READY_SECONDS)
                return node[0], ""
            except AgentError as error:
                if not moved or ended.is_set() or time.monotonic() > until:
                    return node[0], str(error)

    pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="ready")
    try:
        asked = [pool.submit(ping, node) for node in nodes]
        while wait(asked, _CHECK_EVERY).not_done:
            check()
    finally:
        ended.set()
        pool.shutdown(wait=False, cancel_futures=True)
    silent = {name: why for name, why in (one.result() for one in asked) if why}
    if silent:
        reasons = "; ".join(f"{name}: {why}" for name, why in silent.items())
        raise Failed(
            Code.UNREACHABLE,
            f"{len(silent)} of {len(nodes)} nodes of {cluster.name} do not answer",
            reasons,
            f"wherry status; wherry up FILE restarts lost nodes, wherry down {cluster.name} removes silent ones",
        )
