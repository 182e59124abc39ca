"""Routes of clusters, their nodes, and moves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field

from wherry.base.errors import Code, Refused
from wherry.model.migration_parameters import MigrationParameters, MoveOptions
from wherry.model.objects import Cluster, Move, Node
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import DirectionSpec
from wherry.model.spec.parse import parse
from wherry.service.rest.common import Body, OwnedBody, TheActs, TheCell, ThePeer, Word, accepted

router = APIRouter(tags=["clusters"])


class ClusterBody(OwnedBody):
    """A cluster file as it was read; `source` is its name in messages."""

    spec: dict[str, Any]
    source: str = "the cluster file"
    dry_run: bool = False


class MoveBody(Body):
    """Which node goes where, and in which way. `max_rounds` bounds the rounds of pre-copy, `bandwidth` (500Mbit/s) what
    is sent; `fault` is for tests."""

    node: Word
    host: Word
    dry_run: bool = False
    max_rounds: Annotated[int, Field(ge=0, le=100)] | None = None
    bandwidth: Word | None = None
    way: MigrationParameters = MigrationParameters()
    fault: Word | None = None


@router.get("/clusters")
def list_clusters(context: TheCell) -> list[Cluster]:
    """By name."""
    return context.store.clusters()


@router.post("/clusters", status_code=202)
def post_cluster(body: ClusterBody, acts: TheActs, peer: ThePeer) -> JSONResponse:
    """Makes, changes or repairs a cluster; with `dry_run` 200 and the plan, and nothing is changed."""
    spec, owner = parse(ClusterSpec, body.spec, body.source), peer.owner(body.owner)
    if body.dry_run:
        plan = acts.plan(spec, owner)
        return JSONResponse({"plan": plan.model_dump(mode="json"), "text": plan.text()})
    return accepted(acts.up(spec, owner))


@router.delete("/clusters/{name}", status_code=202)
def delete_cluster(name: str, acts: TheActs) -> JSONResponse:
    """Ends the cluster's jobs and removes it."""
    return accepted(acts.down(name))


@router.get("/nodes")
def list_nodes(acts: TheActs, cluster: str | None = None) -> list[Node]:
    """By cluster and index."""
    return acts.nodes(cluster)


@router.get("/nodes/{name}")
def show_node(name: str, acts: TheActs) -> dict[str, Any]:
    """A node, what it uses, and its moves."""
    return acts.show_node(name)


@router.get("/nodes/{name}/console")
def show_console(name: str, acts: TheActs) -> dict[str, Any]:
    """The end of what a virtual machine's kernel said on its console: `node`, `text`."""
    return acts.console(name)


@router.get("/moves")
def list_moves(context: TheCell) -> list[Move]:
    """Oldest first."""
    return context.store.moves()


@router.get("/moves/{id}")
def show_move(id: str, context: TheCell) -> Move:
    """One move."""
    move = context.store.move(id)
    if move is None:
        raise Refused(Code.NOT_FOUND, f"there is no move {id!r}", "", "wherry op list")
    return move


@router.post("/moves", status_code=202)
def post_move(body: MoveBody, acts: TheActs) -> JSONResponse:
    """Moves a node live; with `dry_run` 200 and what it would cost."""
    bandwidth = None
    if body.bandwidth is not None:
        bandwidth = parse(DirectionSpec, {"bandwidth": body.bandwidth}, "the move").bandwidth
    options = MoveOptions(max_rounds=body.max_rounds, bandwidth=bandwidth, parameters=body.way)
    if body.dry_run:
        return JSONResponse({"predicted": acts.predict(body.node, body.host, options).model_dump(mode="json")})
    return accepted(acts.move(body.node, body.host, options, body.fault))
