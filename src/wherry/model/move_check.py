"""Objects that would prevent or prolong moves, found before a move begins. Pure."""

from __future__ import annotations

from wherry.model.records import Record


class Hindrance(Record):
    """An object that prevents a move of a node, or prolongs it by `bytes` that are sent while the node is frozen; with
    neither, a move waits for it for a moment. Or, with `grows`, the node has so many bytes more after a move than
    before. `text` names the process and the descriptor where there is one."""

    text: str
    prevents: bool = False
    bytes: int = 0
    grows: int = 0


class HostCheck(Record):
    """A possible destination of a node, and why the node cannot go there; empty when it can."""

    host: str
    obstacle: str = ""


class NodeCheck(Record):
    """Whether a node on `host` can be moved: when no hindrance prevents it, and one of `hosts` has no obstacle."""

    node: str
    host: str
    hindrances: tuple[Hindrance, ...]
    hosts: tuple[HostCheck, ...]


class JobCheck(Record):
    """Whether the nodes of a job can be moved."""

    job: str
    nodes: tuple[NodeCheck, ...]
