"""Routes of clusters, their nodes, and moves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse
from pydantic import Field

from wherry.base.errors import Code, Refused
from wherry.model.accounts import AccountName
from wherry.model.ledger import Ledger
from wherry.model.migration_parameters import MigrationParameters, MoveOptions, Rounds
from wherry.model.network import MOST_NODES
from wherry.model.queue import Priority
from wherry.model.records import Cluster, Move, Node
from wherry.model.spec.base import ShortText
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import DirectionSpec
from wherry.model.spec.parse import parse
from wherry.service.account_caller import AccountCaller, require_plain
from wherry.service.cluster_queue import QueueCommands
from wherry.service.rest.dependencies import (
    ASKS_HOSTS,
    AccountCommandsDep,
    Body,
    CommandsDep,
    ContextDep,
    OwnedBody,
    PeerDep,
    accepted,
)
from wherry.service.rest.paging import ListsDep, Newest, PagingDep
from wherry.service.restart_commands import RestartCommands
from wherry.service.swap_commands import SwapCommands

router = APIRouter(tags=["clusters"])
Fault = Annotated[str | None, Header(alias="Wherry-Fault", max_length=300, include_in_schema=False)]
"""Test hook: makes the move fail at a phase (`wherry.move.faults`). Refused unless the daemon has WHERRY_FAULTS=1."""


class ClusterBody(OwnedBody):
    """The content of a cluster file; `source` is its name in messages, `project` whose the cluster is to be. With
    `wait` it is made once there is room, in the order of `priority` (above 0: for admins) and entry."""

    spec: dict[str, Any]
    source: str = "the cluster file"
    dry_run: bool = False
    project: AccountName | None = None
    wait: bool = False
    priority: Priority = 0


class MoveBody(Body):
    """A node, its destination, and how to move it: `max_rounds` limits the rounds of pre-copy, `bandwidth` (500Mbit/s)
    the rate of sending, `parameters` has its mode, and further parameters of virtual machines."""

    node: ShortText
    host: ShortText
    dry_run: bool = False
    max_rounds: Rounds | None = None
    bandwidth: ShortText | None = None
    parameters: MigrationParameters = MigrationParameters()


@router.get("/clusters")
def list_clusters(lists: ListsDep, paging: PagingDep) -> list[Cluster]:
    """By name."""
    return paging.answer(lists.clusters(paging.wanted(str)))


@router.post("/clusters", dependencies=[ASKS_HOSTS], status_code=202)
def post_cluster(body: ClusterBody, commands: CommandsDep, accounts: AccountCommandsDep, peer: PeerDep) -> JSONResponse:
    """Makes, changes or repairs a cluster; with `dry_run` 200 and the plan, without any change."""
    spec = parse(ClusterSpec, body.spec, body.source)
    if isinstance(peer, AccountCaller):
        require_plain(spec, peer)
    owner = accounts.owner_for(body.owner, body.project)
    if body.dry_run:
        plan = commands.plan(spec, owner)
        return JSONResponse({"plan": plan.model_dump(mode="json"), "text": plan.text()})
    if body.wait:
        return accepted(QueueCommands(commands.context, peer).enter(spec, owner, body.priority))
    if body.priority:
        raise Refused(Code.USAGE, "a priority is for clusters that wait", "", "wherry up FILE --wait --priority N")
    return accepted(commands.up(spec, owner))


@router.delete("/clusters/{name}", status_code=202)
def delete_cluster(name: str, commands: CommandsDep, end_jobs: bool = False) -> JSONResponse:
    """Removes the cluster. Refused while jobs run on it, unless `end_jobs`: then they are ended."""
    return accepted(commands.down(name, end_jobs))


class SwapBody(Body):
    """Two nodes that change places."""

    node: ShortText
    other: ShortText


@router.post("/swaps", dependencies=[ASKS_HOSTS], status_code=202)
def post_swap(body: SwapBody, context: ContextDep, peer: PeerDep, fault: Fault = None) -> JSONResponse:
    """Swaps two nodes live."""
    return accepted(SwapCommands(context, peer).swap(body.node, body.other, fault))


class RestartBody(Body):
    """Nodes of one cluster that are restarted. `end_jobs`: jobs that run there are ended."""

    nodes: Annotated[list[ShortText], Field(min_length=1, max_length=MOST_NODES)]
    end_jobs: bool = False


@router.post("/restarts", status_code=202)
def post_restart(body: RestartBody, context: ContextDep, peer: PeerDep) -> JSONResponse:
    """Ends nodes, and starts each anew at its host: its programs and its own files are gone."""
    return accepted(RestartCommands(context, peer).restart(body.nodes, body.end_jobs))


@router.get("/nodes")
def list_nodes(lists: ListsDep, paging: PagingDep, cluster: str | None = None) -> list[Node]:
    """By cluster and index."""
    return paging.answer(lists.nodes(paging.wanted(str, int), cluster))


@router.get("/nodes/{name}", dependencies=[ASKS_HOSTS])
def show_node(name: str, commands: CommandsDep) -> dict[str, Any]:
    """A node, its resource usage, and its moves."""
    return commands.show_node(name)


@router.get("/nodes/{name}/console")
def show_console(name: str, commands: CommandsDep) -> dict[str, Any]:
    """The end of a virtual machine's console output: `node`, `text`."""
    return commands.console(name)


@router.get("/moves")
def list_moves(lists: ListsDep, paging: PagingDep, newest: Newest = False) -> list[Move]:
    """Oldest first."""
    return paging.answer(lists.moves(paging.wanted(int, newest=newest)))


@router.get("/moves/ledger")
def show_ledger(commands: CommandsDep) -> Ledger:
    """Prediction and result of each finished move; the spread of the errors."""
    return commands.ledger()


@router.get("/moves/{id}")
def show_move(id: str, commands: CommandsDep) -> Move:
    """One move."""
    return commands.show_move(id)


@router.post("/moves", dependencies=[ASKS_HOSTS], status_code=202)
def post_move(body: MoveBody, commands: CommandsDep, fault: Fault = None) -> JSONResponse:
    """Moves a node live; with `dry_run` 200 and the predicted cost."""
    bandwidth = None
    if body.bandwidth is not None:
        bandwidth = parse(DirectionSpec, {"bandwidth": body.bandwidth}, "the move", "wherry move").bandwidth
    options = MoveOptions(max_rounds=body.max_rounds, bandwidth=bandwidth, parameters=body.parameters)
    if body.dry_run:
        return JSONResponse({"predicted": commands.predict(body.node, body.host, options).model_dump(mode="json")})
    return accepted(commands.move(body.node, body.host, options, fault))
