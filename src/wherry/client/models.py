"""The records' models, imported when the first one is used: that takes as long as all the rest of a short command."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherry.model.balance import BalancePlan
    from wherry.model.profile import Profile
    from wherry.model.records import Event, Host, Image, Job, Move, Node, Operation, Prediction

_ELSEWHERE = {"BalancePlan": "balance", "Profile": "profile"}

__all__ = ["BalancePlan", "Event", "Host", "Image", "Job", "Move", "Node", "Operation", "Prediction", "Profile"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module(f"wherry.model.{_ELSEWHERE.get(name, 'records')}"), name)
