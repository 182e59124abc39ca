"""Routes for objects that would prevent or prolong moves, before a move begins."""

from __future__ import annotations

from fastapi import APIRouter

from wherry.model.move_check import JobCheck, NodeCheck
from wherry.service.rest.dependencies import ASKS_HOSTS, CheckCommandsDep

router = APIRouter(tags=["clusters"])


@router.get("/nodes/{name}/check", dependencies=[ASKS_HOSTS])
def check_node(name: str, commands: CheckCommandsDep) -> NodeCheck:
    """Objects that would prevent or prolong a move of the node, and its possible destinations."""
    return commands.node(name)


@router.get("/jobs/{id}/check", dependencies=[ASKS_HOSTS])
def check_job(id: str, commands: CheckCommandsDep) -> JobCheck:
    """The same for each node with ranks of the job."""
    return commands.job(id)
