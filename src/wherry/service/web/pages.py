"""The pages that only show. Each asks routes of REST and gives their answers to its template."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from wherry.service.web.dependencies import InnerDep, page
from wherry.service.web.inner import Inner
from wherry.service.web.rates import Rates
from wherry.service.web.rendering import report_answer

router = APIRouter(include_in_schema=False)
Json = dict[str, Any]
_NODES = 64
"""Nodes whose load a page asks for; at most so many, each a look at its host."""
_PARALLEL = 8
"""Such looks at a time."""
_CLUSTERS, _HOSTS = 12, 48
"""Clusters and hosts of which the overview shows a page; clusters have columns for so many hosts that have none of
their nodes."""
_ROWS = 200
_OUTPUT = 2 * 2**20
"""Bytes of a job's output that its page shows."""
_CURSOR = Query(ge=0, le=2**53)
_GOING = ("starting", "running")
NEW_CLUSTER = {"name": "hello", "nodes": 4, "kind": "container", "cpus": 0.5, "memory": "256MiB", "spread": "host"}
"""The values with which the form of a new cluster begins."""


@router.get("/web")
async def overview(
    request: Request, inner: InnerDep, cluster: Annotated[int, _CURSOR] = 0, host: Annotated[int, _CURSOR] = 0
) -> Response:
    """Sites, and clusters: hosts as columns, nodes as boxes. Links are a part of their own, as each is measured.
    `cluster` and `host`: the number of rows before the first that is shown."""
    fabric, capacity, clusters, nodes, jobs = await asyncio.gather(
        inner.ask_or(None, "fabric"), inner.ask_or([], "capacity"), inner.get("clusters"), inner.get("nodes"),
        inner.get("jobs"),
    )  # fmt: skip
    hosts = fabric["hosts"] if fabric else []
    cluster, host = _within(cluster, _CLUSTERS, len(clusters)), _within(host, _HOSTS, len(hosts))
    shown = clusters[cluster : cluster + _CLUSTERS]
    names = {one["name"] for one in shown}
    loads = await _loads(request, inner, [node for node in nodes if node["cluster"] in names])
    values = {
        "fabric": fabric,
        "several": len({one["site"] for one in hosts}) > 1,
        "sites": _sites(hosts[host : host + _HOSTS], capacity, nodes),
        "clusters": [_drawn(one, hosts, nodes, loads, jobs) for one in shown],
        "totals": _totals(capacity, nodes, jobs),
        "paged": {
            "clusters": _paged(cluster, _CLUSTERS, len(clusters), "cluster", f"&host={host}"),
            "hosts": _paged(host, _HOSTS, len(hosts), "host", f"&cluster={cluster}"),
        },
    }
    return await page(request, "overview.html", **values)


@router.get("/web/links")
async def links(request: Request, inner: InnerDep) -> Response:
    """Links between sites: declared and measured values, and how much of them is used."""
    rates: Rates = request.app.state.rates
    shown = [{**link, "ways": _ways(link, rates)} for link in await inner.ask_or([], "links")]
    return await page(request, "links.html", links=shown)


@router.get("/web/clusters/new")
async def new_cluster(request: Request, inner: InnerDep) -> Response:
    """The form of a new cluster, with its YAML."""
    fabric, me = await asyncio.gather(inner.ask_or(None, "fabric"), inner.get("me"))
    sites = [site["name"] for site in fabric["fabric"]["sites"]] if fabric else []
    values = {"form": NEW_CLUSTER, "sites": sites, "me": me, "yaml": yaml_of(spec_of(NEW_CLUSTER))}
    return await page(request, "cluster_new.html", **values)


@router.get("/web/jobs")
async def jobs(request: Request, inner: InnerDep) -> Response:
    """Jobs as cards, newest first, and the form of a new one."""
    found, clusters, moves = await asyncio.gather(
        inner.get("jobs", newest="true"), inner.get("clusters"), inner.get("moves", newest="true")
    )
    shown = [{"job": job, "moves": _moves_of(job, moves)} for job in reversed(found[-_ROWS:])]
    return await page(request, "jobs.html", jobs=shown, clusters=clusters)


@router.get("/web/jobs/{id}")
async def job(request: Request, id: str, inner: InnerDep) -> Response:
    """A job: state, places of its ranks, its moves, its output."""
    found, moves = await asyncio.gather(inner.get("jobs", id), inner.get("moves", newest="true"))
    nodes = await inner.ask_or([], "nodes", cluster=found["cluster"])
    places = _places(found, {node["name"]: node["host"] for node in nodes})
    return await page(request, "job.html", job=found, places=places, moves=_moves_of(found, moves))


@router.get("/web/jobs/{id}/output")
async def output(
    request: Request, id: str, inner: InnerDep, offset: Annotated[int, _CURSOR] = 0, shown: Annotated[int, _CURSOR] = 0
) -> Response:
    """A piece of a job's output, as soon as there is some, and the request for the next."""
    found = await inner.get("jobs", id, "output", offset=offset, wait=10 if offset else 0)
    pieces = [(piece["stream"], base64.b64decode(piece["data"]).decode(errors="replace")) for piece in found["chunks"]]
    shown += sum(len(text) for _, text in pieces)
    values = {"id": id, "pieces": pieces, "next": found["next"], "shown": shown, "end": found["end"]}
    return await page(request, "output.html", **values, full=shown > _OUTPUT, job=found["job"])


@router.get("/web/moves")
async def moves(request: Request, inner: InnerDep) -> Response:
    """Moves, newest first; those under way with their rounds."""
    found = await inner.get("moves", newest="true")
    under_way = [move for move in found if move["ended"] is None]
    ended = [move for move in found if move["ended"] is not None][-_ROWS:]
    return await page(request, "moves.html", under_way=under_way, ended=ended[::-1])


@router.get("/web/nodes/{name}/move")
async def new_move(request: Request, name: str, inner: InnerDep) -> Response:
    """The dialog in which a host for a node is chosen."""
    found, fabric = await asyncio.gather(inner.get("nodes", name), inner.get("fabric"))
    others = [host for host in fabric["hosts"] if host["name"] != found["node"]["host"]]
    return await page(request, "move_new.html", node=found["node"], hosts=others)


@router.get("/web/moves/{id}")
async def move(request: Request, id: str, inner: InnerDep) -> Response:
    """A move: its rounds, as a table and a picture, and its downtime."""
    return await page(request, "move.html", move=await inner.get("moves", id))


@router.get("/web/balance")
async def balance(request: Request, inner: InnerDep) -> Response:
    """Decisions of balancing, newest first, with their reasons."""
    auto, found, clusters = await asyncio.gather(inner.get("balance"), _events(inner), inner.get("clusters"))
    decisions = [event for event in found if event["kind"].startswith("balance.")]
    return await page(request, "balance.html", auto=auto["auto"], decisions=decisions[:_ROWS], clusters=clusters)


@router.get("/web/events")
async def events(request: Request, inner: InnerDep) -> Response:
    """Events, newest first."""
    return await page(request, "events.html", events=(await _events(inner))[:_ROWS])


@router.get("/web/operations")
async def operations(request: Request, inner: InnerDep) -> Response:
    """The strip: operations under way, else how the last ones ended."""
    running = await inner.get("operations", running="true")
    told = [] if running else await inner.get("events", limit=30, newest="true")
    last = [event for event in told if event["kind"] == "operation"][:-3:-1]
    return await page(request, "operations.html", running=running, last=last)


@router.get("/web/reports")
async def reports(request: Request, inner: InnerDep) -> Response:
    """Reports of studies."""
    return await page(request, "reports.html", reports=await inner.get("reports"))


@router.get("/web/reports/{name}")
async def report(request: Request, name: str, inner: InnerDep) -> Response:
    """A report, in a frame that may do nothing."""
    return await page(request, "report.html", report=(await inner.get("reports", name))["report"])


@router.get("/web/reports/{name}/content")
async def report_content(name: str, inner: InnerDep) -> Response:
    """The report itself."""
    return report_answer((await inner.get("reports", name))["html"])


@router.get("/web/account")
async def account(request: Request, inner: InnerDep) -> Response:
    """The caller's own account: quota, tokens, keys, password."""
    me, *listed = await asyncio.gather(inner.get("me"), inner.get("tokens"), inner.get("ssh-keys"))
    tokens, keys = ([one for one in some if one["user"] == me["name"]] for some in listed)
    session = request.scope["state"]["peer"].token
    return await page(request, "account.html", me=me, tokens=tokens, ssh_keys=keys, session=session)


@router.get("/web/admin")
async def admin(request: Request, inner: InnerDep) -> Response:
    """Users, projects, quotas, what users may start, the audit log."""
    users, projects, allowed, listener, entries = await asyncio.gather(
        inner.get("users"), inner.get("projects"), inner.get("allowed"), inner.ask_or(None, "listener"),
        inner.get("audit", limit=100, newest="true"),
    )  # fmt: skip
    values = {"users": users, "projects": projects, "allowed": allowed["allowed"], "listener": listener}
    return await page(request, "admin.html", **values, audit=entries[::-1])


def spec_of(form: Mapping[str, Any]) -> Json:
    """A cluster file from the fields of the form; empty fields are left out."""
    spec: Json = {key: form[key] for key in ("name", "nodes", "cpus", "memory") if form.get(key) not in (None, "")}
    if form.get("kind") not in (None, "", "container"):
        spec["kind"] = form["kind"]
    if form.get("sites"):
        spec["sites"] = [site.strip() for site in str(form["sites"]).split(",") if site.strip()]
    if form.get("spread") not in (None, "", "host"):
        spec["placement"] = {"spread": form["spread"]}
    return spec


def yaml_of(spec: Json) -> str:
    """A cluster file as it is written."""
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)


async def _events(inner: Inner) -> list[Json]:
    """Newest first."""
    found: list[Json] = await inner.get("events", limit=1000, newest="true")
    return found[::-1]


async def _loads(request: Request, inner: Inner, nodes: Sequence[Json]) -> dict[str, float | None]:
    """The share of its CPUs that each node uses."""
    rates: Rates = request.app.state.rates
    room = asyncio.Semaphore(_PARALLEL)

    async def load(node: Json) -> tuple[str, float | None]:
        name, host = node["name"], node["host"]
        if rates.is_fresh(name, host):
            used = rates.known(name)
        else:
            async with room:
                found = await inner.ask_or(None, "nodes", name)
            used = rates.of(name, found["usage"]["cpu"] if found and found["usage"] else None, host)
        return name, None if used is None else min(1.0, used / node["cpus"])

    asked = [node for node in nodes if node["state"] in ("running", "moving")][:_NODES]
    return dict(await asyncio.gather(*map(load, asked)))


def _ways(link: Json, rates: Rates) -> list[Json]:
    """Both directions of a link."""
    ends, found = link["link"]["between"], []
    for way, (source, target), latency in (("there", ends, "latency"), ("back", ends[::-1], "latency_back")):
        sent = rates.of(f"{source} to {target}", link[way]["bytes"] if link[way] else None)  # no node is named so
        figures = link["declared"][way]
        width = figures["bandwidth"]
        shown = {"target": target, "latency": link["measured"][latency], "bandwidth": width, "loss": figures["loss"]}
        load = min(1.0, 8 * sent / width) if sent is not None and width else None
        found.append({**shown, "sent": sent, "load": load})
    return found


def _sites(hosts: Sequence[Json], capacity: Sequence[Json], nodes: Sequence[Json]) -> list[Json]:
    """Sites with their hosts, and the free capacity of these."""
    free = {one["host"]: one for one in capacity}
    names = list(dict.fromkeys(host["site"] for host in hosts))

    def shown(host: Json) -> Json:
        here = sum(node["host"] == host["name"] for node in nodes)
        state = "lost" if host["lost"] else "down" if host["down"] else "drained" if host["drained"] else "up"
        return {**host, "free": free.get(host["name"]), "nodes": here, "state": state}

    return [{"name": name, "hosts": [shown(host) for host in hosts if host["site"] == name]} for name in names]


def _totals(capacity: Sequence[Json], nodes: Sequence[Json], jobs: Sequence[Json]) -> Json:
    """Of all that the caller sees: nodes, jobs that run, and the share of the hosts that is promised to nodes."""
    found: Json = {"nodes": len(nodes), "running": sum(job["state"] in _GOING for job in jobs)}
    for key in ("cores", "memory"):
        found[key] = sum(host[key] for host in capacity)
        found[f"used_{key}"] = found[key] - sum(host[f"free_{key}"] for host in capacity)
    return found


def _drawn(
    cluster: Json, hosts: Sequence[Json], nodes: Sequence[Json], loads: Mapping[str, float | None], jobs: Sequence[Json]
) -> Json:
    """A cluster as columns of boxes; on many hosts those with its nodes alone."""
    own = [node for node in nodes if node["cluster"] == cluster["name"]]
    boxes = [{**node, "load": loads.get(node["name"]), "shade": _shade(loads.get(node["name"]))} for node in own]
    used, every = {node["host"] for node in own}, len(hosts) <= _HOSTS
    columns = [
        {**host, "boxes": [box for box in boxes if box["host"] == host["name"]]}
        for host in hosts
        if every or host["name"] in used
    ]
    running = [job for job in jobs if job["cluster"] == cluster["name"] and job["state"] in _GOING]
    return {**cluster, "columns": columns, "hidden": len(hosts) - len(columns), "boxes": boxes, "running": running}


def _within(first: int, most: int, total: int) -> int:
    """`first`, or the beginning of the last page where there are not so many rows any more."""
    return first if first < total else max(0, total - 1) // most * most


def _paged(first: int, most: int, total: int, key: str, others: str) -> Json:
    """A list of which `most` rows are shown: numbers of the first and last one (from 1), and the addresses before and
    after (None: there is none)."""
    before = f"/web?{key}={max(0, first - most)}{others}" if first else None
    after = f"/web?{key}={first + most}{others}" if first + most < total else None
    return {"first": first + 1, "last": min(total, first + most), "total": total, "before": before, "after": after}


def _shade(load: float | None) -> str:
    """Class of a load's colour: five steps."""
    return "unknown" if load is None else f"l{min(4, int(load * 5))}"


def _moves_of(job: Json, moves: Sequence[Json]) -> list[Json]:
    """Moves of a job's nodes while it ran."""
    nodes, since, until = set(job["nodes"]), job["created"], job["ended"] or float("inf")
    return [move for move in moves if move["node"] in nodes and since <= move["created"] <= until]


def _places(job: Json, host_of: Mapping[str, str]) -> list[Json]:
    """Nodes of a job with their ranks, as far as they are known, and the host of each."""
    ranks: dict[str, list[int]] = {node: [] for node in job["nodes"]}
    share, more = divmod(job["ranks"], max(1, len(job["nodes"])))
    blocks = [node for index, node in enumerate(job["nodes"]) for _ in range(share + (index < more))]
    for rank, node in enumerate(job["rank_nodes"] or blocks):
        ranks.setdefault(node, []).append(rank)
    return [{"node": node, "ranks": here, "host": host_of.get(node, "")} for node, here in ranks.items()]
