"""Routes that say what would prevent or prolong moves, before any begins."""

from __future__ import annotations

from fastapi import APIRouter

from wherry.model.move_check import JobCheck, NodeCheck
from wherry.service.rest.dependencies import ASKS_HOSTS, CheckCommandsDep

router = APIRouter(tags=["clusters"])


@router.get("/nodes/{name}/check", dependencies=[ASKS_HOSTS])
def check_node(name: str, commands: CheckCommandsDep) -> NodeCheck:
    """What would prevent or prolong a move of the node, and to which hosts it can go."""
    return commands.node(name)


@router.get("/jobs/{id}/check", dependencies=[ASKS_HOSTS])
def check_job(id: str, commands: CheckCommandsDep) -> JobCheck:
    """The same for each node with ranks of the job."""
    return commands.job(id)
