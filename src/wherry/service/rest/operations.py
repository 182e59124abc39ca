"""Routes of operations and events."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from wherry.model.paging import Page
from wherry.model.records import Event, Operation, OperationState
from wherry.service.rest.dependencies import CommandsDep, ContextDep, Offset, WaitSeconds
from wherry.service.rest.long_poll import long_poll
from wherry.service.rest.paging import ListsDep, Newest, PagingDep

router = APIRouter(tags=["operations"])


@router.get("/operations")
def list_operations(
    lists: ListsDep, paging: PagingDep, running: bool = False, newest: Newest = False
) -> list[Operation]:
    """Oldest first."""
    return paging.answer(lists.operations(paging.wanted(int, newest=newest), running))


@router.get("/operations/{id}")
async def show_operation(
    id: str,
    context: ContextDep,
    commands: CommandsDep,
    wait: WaitSeconds = 0.0,
    after: Offset = 0,
    trail: bool = False,
) -> dict[str, Any]:
    """The operation and its lines of progress from number `after` on, as soon as there are some or it has ended. With
    `trail` all its steps: each with time, kind, text and user, kept as long as the operation."""

    def read() -> dict[str, Any]:
        operation, lines = commands.operation(id, after)
        steps = [one.model_dump(mode="json") for one in context.operations.trail(id)] if trail else []
        told = {"trail": steps} if trail else {}
        return {"operation": operation.model_dump(mode="json"), "lines": lines, "next": after + len(lines), **told}

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
    lists: ListsDep,
    paging: PagingDep,
    wait: WaitSeconds = 0.0,
    after: Offset = 0,
    newest: Newest = False,
) -> list[Event]:
    """Events after number `after`, as soon as there are some, oldest first."""
    wanted = paging.wanted(int, newest=newest)

    def read() -> Page[Event] | None:
        found = lists.events(wanted, after)
        return found if found.rows else None

    return paging.answer(await long_poll(context, read, wait) or Page([]))
