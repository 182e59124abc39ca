"""The records' models, imported when the first one is used: that takes as long as all the rest of a short command."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherry.model.balance import BalancePlan
    from wherry.model.move_check import JobCheck, NodeCheck
    from wherry.model.mpi_profile import MpiProfile
    from wherry.model.profile import Profile
    from wherry.model.program import ProgramProfile
    from wherry.model.records import Event, Host, Image, Job, Move, Node, Prediction

_ELSEWHERE = {
    "BalancePlan": "balance",
    "JobCheck": "move_check",
    "MpiProfile": "mpi_profile",
    "NodeCheck": "move_check",
    "Profile": "profile",
    "ProgramProfile": "program",
}

__all__ = [
    "BalancePlan",
    "Event",
    "Host",
    "Image",
    "Job",
    "JobCheck",
    "Move",
    "MpiProfile",
    "Node",
    "NodeCheck",
    "Prediction",
    "Profile",
    "ProgramProfile",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module(f"wherry.model.{_ELSEWHERE.get(name, 'records')}"), name)
