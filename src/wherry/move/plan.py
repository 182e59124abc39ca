"""The plan of one move: decided in full before the move begins, and handed on unchanged to the end of its walk."""

from __future__ import annotations

from dataclasses import dataclass, field

from wherry.base.errors import WherryError
from wherry.model.migration_parameters import MoveOptions
from wherry.model.records import Gain, Host, Node, Prediction
from wherry.move.faults import Fault
from wherry.move.link_admission import LinkPath


@dataclass(frozen=True)
class MovePlan:
    """One move. `node` is the row that was read for the plan.

    `predicted` is None when the node could not be measured, for the reason `unpredicted`. `gain` is the prediction of
    balancing. `partner` is the node of the destination that changes places with this one, whose room it gets. `fault`
    is for tests.
    """

    node: Node
    destination: Host
    path: LinkPath
    options: MoveOptions
    predicted: Prediction | None = None
    unpredicted: WherryError | None = None
    gain: Gain | None = None
    partner: str = ""
    fault: Fault = field(default_factory=Fault)
