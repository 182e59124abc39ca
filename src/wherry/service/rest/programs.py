"""Routes of the profiles of programs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from wherry.model.program import ProgramProfile
from wherry.service.program_commands import ProgramCommands
from wherry.service.rest.dependencies import ContextDep, PeerDep
from wherry.service.rest.paging import ListsDep, PagingDep

router = APIRouter(tags=["jobs"])


def _programs(context: ContextDep, peer: PeerDep) -> ProgramCommands:
    return ProgramCommands(context, peer)


ProgramsDep = Annotated[ProgramCommands, Depends(_programs)]


@router.get("/programs")
def list_programs(lists: ListsDep, paging: PagingDep) -> list[ProgramProfile]:
    """The profiles of the user's programs, that measured last first; of all users' for root."""
    return paging.answer(lists.programs(paging.wanted(int)))


@router.delete("/programs/{key}")
def forget_program(key: str, programs: ProgramsDep) -> ProgramProfile:
    """Forgets a profile."""
    return programs.forget(key)
