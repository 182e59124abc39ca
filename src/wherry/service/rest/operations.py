"""Routes of operations and events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from wherry.model.records import Event, Operation, OperationState
from wherry.service.rest.dependencies import CommandsDep, ContextDep, Offset, WaitSeconds
from wherry.service.rest.long_poll import long_poll

router = APIRouter(tags=["operations"])


@router.get("/operations")
def list_operations(commands: CommandsDep, running: bool = False) -> list[Operation]:
    """Oldest first."""
    return commands.operations(running)


@router.get("/operations/{id}")
async def show_operation(
    id: str, context: ContextDep, commands: CommandsDep, wait: WaitSeconds = 0.0, after: Offset = 0
) -> dict[str, Any]:
    """The operation and its lines of progress from number `after` on, as soon as there are some or it has ended."""

    def read() -> dict[str, Any]:
        operation, lines = commands.operation(id, after)
        return {"operation": operation.model_dump(mode="json"), "lines": lines, "next": after + len(lines)}

    def changed() -> dict[str, Any] | None:
        found = read()
        return found if found["lines"] or not OperationState(found["operation"]["state"]).under_way else None

    return await long_poll(context, changed, wait) or read()


@router.post("/operations/{id}/cancel", status_code=202)
def cancel_operation(id: str, commands: CommandsDep) -> Operation:
    """Asks the operation to end."""
    return commands.cancel_operation(id)


@router.get("/events")
async def list_events(
    context: ContextDep,
    commands: CommandsDep,
    wait: WaitSeconds = 0.0,
    after: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    newest: bool = False,
) -> list[Event]:
    """Events after number `after`, as soon as there are some; of more than `limit` the first, or the `newest`."""
    return await long_poll(context, lambda: commands.events(after, limit, newest), wait) or []
