"""Answers to a running program about its job, by `wherry.service.rest.inside`. Frozen data; nothing here does I/O."""

from __future__ import annotations

from wherry.model.records import NodeState, OperationState, Record


class Place(Record):
    """Where the node of a rank is at this moment."""

    job: str
    cluster: str
    ranks: int
    node: str
    state: NodeState
    host: str
    site: str


class HostRoom(Record):
    """A host with its free resources. `load`: CPUs in use (None: not measured); `nodes`: how many of the job's are
    there; `usable`: nodes of the job's cluster may go there now, if there is room."""

    name: str
    site: str
    cores: float
    free_cores: float
    load: float | None
    speed: float
    memory: int
    free_memory: int
    nodes: int
    usable: bool


class HostList(Record):
    """All hosts, as many as `count`."""

    count: int
    hosts: tuple[HostRoom, ...]


class Places(Record):
    """Nodes for processes that are to be spawned, as the key `host` of MPI wants them: `ADDRESS:NUMBER,…`."""

    hosts: str


class Asked(Record):
    """The result of an act: its operation (empty: nothing was to do), how many nodes it moved, and its error."""

    state: OperationState
    operation: str = ""
    progress: str = ""
    moved: int = 0
    code: str = ""
    what: str = ""
    why: str = ""
