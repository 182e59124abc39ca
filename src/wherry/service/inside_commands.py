"""The commands of a running program on its own job, for the routes that nodes reach (docs/design/0025-from-inside.md).

Invariants: a caller has shown the token of a job that runs on the cluster from whose network the request came, and
is one of its nodes; nothing but that job is shown or changed, hosts aside; a move is the job's user's, with the rights
that `wherry move` would give, and of a node of the job.
"""

from __future__ import annotations

import hmac
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.cluster.lookup import find_cluster, find_node, known_hosts
from wherry.cluster.placements import secret_name
from wherry.job import inside
from wherry.job.rank_map import rank_map
from wherry.model.accounts import is_account
from wherry.model.inside import Asked, HostList, HostRoom, Place, Places
from wherry.model.job_request import Layout
from wherry.model.migration_parameters import MoveOptions
from wherry.model.records import Hints, Host, Job, Node, NodeState, Operation, OperationState
from wherry.schedule import spawn_placement
from wherry.schedule.placement import Used, used_by
from wherry.service import balance_commands
from wherry.service.balance_sampling import sampling
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials, owner_of
from wherry.service.operations import idempotency_key
from wherry.service.rate_limit import RateLimit
from wherry.service.recent_places import RecentPlaces
from wherry.service.task import Task
from wherry.service.wishes import KIND, Wish, only_of, subject_of

_BEARER = re.compile(r"Bearer (job-[0-9a-z]{1,20})\.([0-9a-f]{64})", re.ASCII)
_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MEASURED = 2.0
"""Seconds for which a job is measured that asks to be balanced."""


class Busy(Refused):
    """Refused for the moment only: the library of the program asks again by itself."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(Code.WRONG_STATE, what, why, "ask again in a second")


class InsideLimits:
    """How often nodes may ask, and jobs may act; and that the move of a node is planned by one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: set[str] = set()
        self.places = RecentPlaces()
        self._asks = RateLimit(rate=200.0, burst=400.0)
        self._acts = RateLimit(rate=2.0, burst=16.0)

    def ask(self, node: str) -> None:
        """Busy when this address asked too often."""
        if not self._asks.take(node):
            raise Busy("this node asks too often", "at most 200 requests a second, 400 at once")

    def act(self, job: str) -> None:
        """Busy when this job acted too often."""
        if not self._acts.take(job):
            raise Busy(f"job {job} asks for too many moves", "at most 2 a second, 16 at once")

    @contextmanager
    def planning(self, node: str) -> Iterator[None]:
        """Busy while another request plans a move of the node: a plan looks at its processes, which a move that has
        begun meanwhile takes for traced."""
        with self._lock:
            if node in self._planned:
                raise Busy(f"a move of {node} is being planned", "for another rank of it, perhaps")
            self._planned.add(node)
        try:
            yield
        finally:
            with self._lock:
                self._planned.discard(node)


def admitted(context: ServiceContext, cluster: str, address: str, authorization: str) -> tuple[Job, Node]:
    """The job whose token it is, and its node at that address. PERMISSION, always with the same text, which reveals
    nothing."""
    given = _BEARER.fullmatch(authorization)
    job = context.store.job(given[1]) if given else None
    if given and job and job.cluster == cluster and job.computes:
        if hmac.compare_digest(inside.token(context.store.secret(secret_name(cluster)), job.id), given[2]):
            if node := next((one for one in context.store.nodes(cluster) if one.address == address), None):
                return job, node
    why = "a token is good on the nodes of its own job, while that runs"
    raise Refused(Code.PERMISSION, "the token is not of a job on this node", why, "leave WHERRY_TOKEN as Wherry set it")


class InsideCommands:
    """The commands of one job, asked from one of its cluster's nodes."""

    def __init__(
        self, context: ServiceContext, limits: InsideLimits, group: int | None, job: Job, node: Node, key: str = ""
    ) -> None:
        self._context, self._limits, self._group = context, limits, group
        self._job, self._node, self._key = job, node, key

    def where(self, rank: int | None) -> Place:
        """Where the asking node is, or that of a rank."""
        node, job = self._node if rank is None else self._of_rank(rank), self._job
        sites = {host.name: host.site for host in self._context.require_managers().fabric.spec.hosts}
        return Place(
            job=job.id, cluster=job.cluster, ranks=job.ranks, node=node.name, state=node.state, host=node.host,
            site=sites.get(node.host, ""),
        )  # fmt: skip

    def hosts(self) -> HostList:
        """All hosts, with their free capacity, and their load as of some seconds ago at most."""
        managers, store = self._context.require_managers(), self._context.store
        nodes, spec = store.nodes(), find_cluster(store, self._job.cluster).spec
        used, loads = used_by(nodes, store.moves(unfinished=True)), managers.clusters.loads()
        own = Counter(node.host for node in nodes if node.name in self._job.nodes)

        def usable(host: Host) -> bool:
            allowed = (not spec.sites or host.site in spec.sites) and (not spec.hosts or host.name in spec.hosts)
            return allowed and not host.down and not host.drained

        def room(host: Host) -> HostRoom:
            taken = used.get(host.name, Used())
            return HostRoom(
                name=host.name, site=host.site, cores=host.cores, free_cores=max(0.0, host.cores - taken.cpus),
                load=loads.get(host.name), speed=host.speed, memory=host.memory,
                free_memory=max(0, host.memory - taken.memory), nodes=own[host.name], usable=usable(host),
            )  # fmt: skip

        found = tuple(room(host) for host in known_hosts(store, managers.fabric, ()))
        return HostList(count=len(found), hosts=found)

    def places(self, processes: int, host: str, room: int) -> Places:
        """Nodes of the job for processes that it spawns, on the least loaded hosts; only those named by `host`, if it
        names any. The text has at most `room` characters."""
        job, store = self._job, self._context.store
        hosts, ranks = {one.name: one for one in self.hosts().hosts}, Counter(job.rank_nodes)
        nodes = store.nodes()
        placed, new = self._placed(nodes), defaultdict[str, float](float)
        for node in nodes:
            new[node.host] += placed[node.name]
        down = {one.name for one in known_hosts(store, self._context.require_managers().fabric, ()) if one.down}

        def seat(node: Node) -> spawn_placement.Seat:
            one = hosts[node.host]
            load = one.cores - one.free_cores if one.load is None else one.load
            return spawn_placement.Seat(
                node=node.name, address=node.address, host=node.host, cpus=node.cpus, cores=one.cores,
                load=load + new[node.host], busy=ranks[node.name] + placed[node.name],
                second=not one.usable or node.state is not NodeState.RUNNING,
            )  # fmt: skip

        there = [node for node in nodes if node.name in job.nodes and node.host in hosts and node.host not in down]
        seats = [seat(node) for node in there if node.state in (NodeState.RUNNING, NodeState.MOVING)]
        rooms = spawn_placement.named(seats, host) if host else None
        longest = max((len(one.address) for one in seats), default=0) + len(f":{processes},")
        found = spawn_placement.places(seats, processes, rooms, max(1, (room + 1) // longest))
        before = self._context.require_managers().placements.processes
        self._limits.places.add(job.id, found, {node.name: before(node) or 0 for node in there if node.name in found})
        address = {seat.node: seat.address for seat in seats}
        return Places(hosts=",".join(f"{address[name]}:{count}" for name, count in found.items()))

    def _placed(self, nodes: Iterable[Node]) -> Mapping[str, float]:
        """The processes placed a moment ago, in busy CPUs by node: all in the answers to this job; of other jobs' only
        processes that are there, and no more than the node has CPUs for."""
        under_way = {one.id for one in self._context.store.jobs_under_way()}
        own, others = self._limits.places.of(self._job.id, under_way)
        processes = self._context.require_managers().placements.processes

        def of_others(node: Node) -> float:
            promise = others.get(node.name)
            there = processes(node) if promise else None
            came = min(promise.processes, there - promise.before) if promise and there is not None else 0
            return max(0.0, min(came, node.cpus))

        return {node.name: own[node.name] + of_others(node) for node in nodes}

    def move(self, host: str, rank: int | None = None, node: str | None = None) -> Asked:
        """Moves a node of the job, by default the asking one. The move of a node that is there already is done at
        once, and a request for a move under way gets its operation: so all ranks of a node may ask together."""
        found = self._chosen(rank, node)
        if again := self._with_key():
            return again
        act = Commands(self._context, self._acting()).move
        with self._limits.planning(found.name):  # a caller that is refused meanwhile asks again, and finds it made
            if made := self._made(found.name, host):
                return made
            with self._keyed():
                return asked(act(found.name, host, MoveOptions()))

    def _made(self, node: str, host: str) -> Asked | None:
        """The move, if it is under way or done."""
        if under_way := self._running("move", f"{node} to {host}"):
            return asked(under_way)
        now = find_node(self._context.store, node)  # after the look: a move may just have ended
        there = now.host == host and now.state is NodeState.RUNNING
        return Asked(state=OperationState.DONE) if there else None

    def wish(self, host: str | None, downtime: float, within: float) -> Asked:
        """Has the daemon move the asking node when that is cheap, or, without a host, what of the job pays to be. A
        node has one wish, and a job one without a host: the same one is shared, another one replaces it."""
        node = self._chosen(None, None)
        if again := self._with_key():
            return again
        peer, managers = self._acting(), self._context.require_managers()
        peer.require(find_cluster(self._context.store, node.cluster).owner_uid, f"cluster {node.cluster}")
        if host is not None and host not in {known.name for known in managers.fabric.spec.hosts}:
            raise Refused(Code.NOT_FOUND, f"no host is named {host!r}", "", "ask for the hosts")
        wish = Wish(self._context, self._job.id, node.name, host, downtime, within, self._limits.planning, self._acting)
        subject = node.name if host else self._job.id
        with self._limits.planning(subject):  # a caller that is refused meanwhile asks again, and finds this one
            operations = self._context.operations
            earlier = [one for one in operations.all(running=True) if one.kind == KIND and subject_of(one) == subject]
            for one in earlier:
                if one.target == wish.target and self._has_own_key(one) and not operations.cancelled(one.id):
                    return asked(one)
            with self._keyed():
                for one in earlier:
                    operations.cancel_waiting(one.id)  # a move under way continues, and the new one comes after it
                return asked(operations.start(KIND, wish.target, wish.run, uid=peer.uid, apart=True))

    def balance(self) -> Asked:
        """Measures the job and makes the moves of its nodes that pay."""
        if again := self._with_key():
            return again
        peer, context, name = self._acting(), self._context, self._job.cluster
        peer.require(find_cluster(context.store, name).owner_uid, f"cluster {name}")
        view = sampling(context)

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"measuring {name} for {_MEASURED:g} s, as {self._job.id} asks")
            with view:
                samples = view.measure(_MEASURED, task.stop.wait)
                task.check()
                plan = view.plan(*samples, [name])
            return balance_commands.carry_out(context, task, only_of(plan, self._job))

        with self._keyed():
            return asked(balance_commands.start(context, name, [name], body, peer.uid))

    def operation(self, id: str) -> Asked:
        """An operation on nodes of the job. NOT_FOUND for all others."""
        found = self._context.operations.get(id) if re.fullmatch(r"op-[0-9a-z]{1,20}", id) else None
        ours = found is not None and found.uid == self._job.uid and self._is_ours(found)
        if found is None or not ours:
            raise Refused(Code.NOT_FOUND, "there is no such operation of this job", "", "ask for a move again")
        return asked(found)

    def hint(
        self, rank: int, phase: str | None, critical: bool, iterations_left: int | None, expected: float | None
    ) -> None:
        """Keeps the program's hint. Busy while the job is being started."""
        jobs = self._context.require_managers().jobs

        def change(job: Job) -> Job:
            hints, ends, ran = job.hints or Hints(), expected, jobs.ran(job)
            if phase is not None:
                hints = inside.with_phase(hints, rank, phase, critical)
            if iterations_left is not None:
                hints = inside.with_iterations(hints, rank, iterations_left, ran)
                ends = inside.remaining(hints, ran) if ends is None else ends
            if ends is None:
                return job.model_copy(update={"hints": hints})
            return job.model_copy(update={"hints": hints.model_copy(update={"told": True}), "expected": ran + ends})

        try:
            jobs.update(self._job.id, change)
        except Refused as refused:
            now = self._context.store.job(self._job.id)
            if refused.code is Code.WRONG_STATE and now and now.state.under_way:
                raise Busy(f"job {now.id} is being started", "it may give hints in a moment") from None
            raise

    def _is_ours(self, operation: Operation) -> bool:
        if operation.kind in ("move", KIND):
            return subject_of(operation) in (*self._job.nodes, self._job.id)
        return operation.kind == "balance" and self._has_own_key(operation)

    def _has_own_key(self, operation: Operation) -> bool:
        """Whether this job began it."""
        return operation.key.startswith(f"{self._job.id} ")

    def _running(self, kind: str, target: str) -> Operation | None:
        running = self._context.operations.all(running=True)
        return next((one for one in running if (one.kind, one.target, one.uid) == (kind, target, self._job.uid)), None)

    def _with_key(self) -> Asked | None:
        """The outcome of the same request before: a request is repeated when its answer was cut off."""
        found = self._context.operations.with_key(self._job.uid, self._full_key()) if self._key else None
        return asked(found) if found else None

    def _full_key(self) -> str:
        if not _KEY.fullmatch(self._key):
            raise Refused(Code.USAGE, "an Idempotency-Key has 32 hex digits here", "", "leave it out, or make one")
        return f"{self._job.id} {self._key}"

    @contextmanager
    def _keyed(self) -> Iterator[None]:
        self._limits.act(self._job.id)
        token = idempotency_key.set(self._full_key() if self._key else f"{self._job.id} ")
        try:
            yield
        finally:
            idempotency_key.reset(token)

    def _acting(self) -> PeerCredentials:
        """The job's user, if it may use the daemon now, or root started the job for it (sudo). PERMISSION."""
        job = self._job
        peer = PeerCredentials(job.uid, job.gid, frozenset(owner_of(job.uid, job.gid, "/").groups))
        known = peer.is_authorised(self._group) or is_account(job.uid)
        if not known and job.starter != 0:
            why = "that is for root (or the group of wherryd --group)"
            raise Refused(Code.PERMISSION, "the user of this job may not use the daemon", why, "ask an administrator")
        return peer

    def _chosen(self, rank: int | None, name: str | None) -> Node:
        """The node of a rank, that of this name, or the asking one. PERMISSION when it has no rank of the job."""
        if rank is not None and name is not None:
            raise Refused(Code.USAGE, "name a rank or a node, not both", "", "leave one out")
        node = self._node if rank is None else self._of_rank(rank)
        wanted = name or node.name
        if wanted not in self._job.nodes:
            what, why = "a job moves its own nodes only", f"it runs on {', '.join(self._job.nodes[:8])}"
            raise Refused(Code.PERMISSION, what, why, "name one of these")
        return find_node(self._context.store, wanted)

    def _of_rank(self, rank: int) -> Node:
        """The node of a rank. NOT_FOUND."""
        job, store = self._job, self._context.store
        if rank >= job.ranks:
            raise Refused(Code.NOT_FOUND, f"job {job.id} has no rank {rank}", f"it has {job.ranks}", "")
        if job.rank_nodes:
            return find_node(store, job.rank_nodes[rank])
        return rank_map([find_node(store, name) for name in job.nodes], job.ranks, Layout())[rank]


def asked(operation: Operation) -> Asked:
    """The answer to a program about an operation."""
    result, error = operation.result or {}, operation.error or {}
    moves = result.get("moves")
    moved = len(moves) if isinstance(moves, list) else int("move" in result)
    return Asked(
        state=operation.state, operation=operation.id, progress=operation.progress, moved=moved,
        code=error.get("code", ""), what=error.get("what", ""), why=error.get("why", ""),
    )  # fmt: skip
