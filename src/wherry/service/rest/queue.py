"""Routes of the queue of clusters."""

from __future__ import annotations

from fastapi import APIRouter

from wherry.model.queue import QueueEntry
from wherry.service.cluster_queue import QueueCommands
from wherry.service.rest.dependencies import ContextDep, PeerDep

router = APIRouter(tags=["clusters"])


@router.get("/queue")
def list_queue(context: ContextDep, peer: PeerDep) -> list[QueueEntry]:
    """The clusters that wait for room, the first one first; to cancel one, cancel its operation."""
    return QueueCommands(context, peer).entries()
