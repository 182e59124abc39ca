"""Routes of operations and events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from wherry.model.objects import Event, Operation, OperationState
from wherry.service.rest.common import Number, TheActs, TheCell, Wait, until

router = APIRouter(tags=["operations"])


@router.get("/operations")
def list_operations(context: TheCell, running: bool = False) -> list[Operation]:
    """Oldest first."""
    return context.operations.all(running)


@router.get("/operations/{id}")
async def show_operation(id: str, context: TheCell, wait: Wait = 0.0, after: Number = 0) -> dict[str, Any]:
    """The operation and its lines of progress from number `after` on, as soon as there are some or it has ended."""

    def look() -> dict[str, Any]:
        operation = context.operations.get(id)
        lines = context.operations.lines(id, after)
        return {"operation": operation.model_dump(mode="json"), "lines": lines, "next": after + len(lines)}

    def news() -> dict[str, Any] | None:
        found = look()
        return found if found["lines"] or found["operation"]["state"] != OperationState.RUNNING else None

    return await until(context, news, wait) or look()


@router.post("/operations/{id}/cancel", status_code=202)
def cancel_operation(id: str, acts: TheActs) -> Operation:
    """Asks the operation to end."""
    return acts.cancel_operation(id)


@router.get("/events")
async def list_events(
    context: TheCell,
    wait: Wait = 0.0,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[Event]:
    """Events after number `after`, as soon as there are some."""
    return await until(context, lambda: context.store.events(after, limit), wait) or []
