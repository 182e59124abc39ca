"""The commands of the REST interface on the fabric, clusters, nodes, moves, jobs, operations and events.

Invariants: a command that takes long becomes an operation; refusals come before its row exists, where possible.
An operation that changes a cluster claims it exclusively; moves and runs share it. A cluster or job is changed by its
owner or root alone, the fabric by root alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wherry.base.errors import Bug, Code, Failed, Refused, WherryError
from wherry.base.units import format_duration
from wherry.cluster.binds import is_bound
from wherry.cluster.hot_binds import not_bound
from wherry.cluster.leases import require_lease
from wherry.cluster.lookup import find_cluster, find_job, find_node
from wherry.cluster.plan import ClusterPlan, StepKind
from wherry.fabric.protocol import LinkMeasure, LinkState
from wherry.model.job_request import JobRequest, SignalName
from wherry.model.ledger import Ledger
from wherry.model.migration_parameters import MoveOptions
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Event, Host, Job, JobState, Move, Node, Operation, OperationState, Prediction
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import DirectionSpec, FabricSpec, LinkSpec
from wherry.move.ledger import ledger
from wherry.service.account_caller import AccountCaller
from wherry.service.claims import FABRIC, Claims, cluster_claim, job_claim, link_claim, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.operations import no_operation
from wherry.service.queue_order import require_turn
from wherry.service.seen_store import seen
from wherry.service.task import Body, Task

_SAMPLE = 1.0
"""Seconds for which a node's writes are sampled to foretell the cost of its move."""
_BRIEF, _WAIT, _LOOK = ("run", "exec"), 60.0, 0.2
_SIGNAL_SECONDS = 300.0
"""For a node to answer: a move may have it stand for as long (K6)."""
_FIRST_RANK = 10.0
"""Seconds between the start of a launcher and the first of its ranks, on a busy machine."""
"""Operations that end when a program was started, and for how many seconds a run waits for them; those after which it
looks whether it was cancelled."""
_CONSOLE = 256 << 10
"""Bytes of a console's end that are returned."""


class Commands:
    """The commands of one peer on one instance."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self.context = context
        self.peer = peer
        self.seen = seen(context.store, peer)

    def fabric(self) -> dict[str, Any]:
        """The fabric, its hosts and, while it is up, their places: network namespace and address. NOT_FOUND."""
        spec, managers = self.context.store.fabric(), self.context.managers
        if spec is None or managers is None:
            raise Refused(Code.NOT_FOUND, "no fabric is up", "", "wherry fabric up FILE, or: wherry up FILE")
        fabric, up, shown = managers.fabric, managers.fabric.is_up(), spec.model_dump(mode="json")
        plain = self.peer.seen_uids is not None
        for host in shown["hosts"] if plain else ():
            host.pop("uri", None)  # how root reaches it
        hosts = [host.model_dump(mode="json") for host in self.context.hosts()]
        places = {
            host.name: {"netns": fabric.host_netns(host.name), "address": fabric.host_address(host.name)}
            for host in (fabric.spec.hosts if up and not plain else ())
        }
        return {"fabric": shown, "up": up, "hosts": hosts, "places": places}

    def hosts(self) -> list[Host]:
        """The hosts and their present state."""
        return self.context.hosts()

    def fabric_up(self, spec: FabricSpec) -> Operation:
        """Makes or repairs the fabric."""
        self.peer.require(0, "the fabric")
        spec = self.context.expanded(spec)
        self.context.check_fabric_up(spec)

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"making {len(spec.hosts)} hosts at {len(spec.sites)} sites")
            self.context.fabric_up(spec)
            if self.context.require_managers().allocations:
                task.progress("hosts join when Slurm has allocated them: wherry host list")
            return {"fabric": spec.name, "hosts": [host.name for host in spec.hosts]}

        return self._start("fabric up", spec.name, body, may_cancel=False, exclusive=[FABRIC])

    def fabric_down(self) -> Operation:
        """Removes the fabric."""
        self.peer.require(0, "the fabric")
        self.context.check_fabric_down()
        name = self.context.require_managers().fabric.spec.name

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"removing the hosts of {name}")
            self.context.fabric_down()
            return {"fabric": name}

        return self._start("fabric down", name, body, may_cancel=False, exclusive=[FABRIC])

    def links(self, bandwidth: bool) -> list[tuple[LinkState, LinkMeasure]]:
        """The links with their measured latency, and their bandwidth too if `bandwidth`: that fills them, so only root
        may."""
        if bandwidth:
            self.peer.require(0, "the bandwidth of the links, which all clusters share,")
        fabric = self.context.require_managers().fabric
        return [(state, fabric.measure_link(state.link, bandwidth)) for state in fabric.links()]

    def set_link(self, one: str, other: str, figures: DirectionSpec, overlay: str | None, one_way: bool) -> Operation:
        """Changes the given figures of the link between two sites, in both directions or only from `one` to `other`."""
        self.peer.require(0, "the fabric")

        def changed() -> LinkSpec:
            link = self.context.link(one, other).changed(one, figures, overlay, one_way)
            self.context.check_link(link)
            return link

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"changing the link between {one} and {other}")
            link = changed()  # anew: an earlier change may have ended since the check
            self.context.set_link(link)
            return {"link": link.model_dump(mode="json")}

        name = changed().name
        claims = [link_claim(name)]
        return self._start("link set", name, body, may_cancel=False, shared=[FABRIC], exclusive=claims)

    def clusters(self) -> list[Cluster]:
        """All clusters, by name, with their leases."""
        leases = self.context.store.leases.all()
        return [one.model_copy(update={"lease": leases.get(one.name)}) for one in self.seen.clusters()]

    def plan(self, spec: ClusterSpec, owner: Owner) -> ClusterPlan:
        """The changes that `up` would make; changes nothing."""
        return self.context.planning_managers().clusters.plan(spec, owner)

    def up(self, spec: ClusterSpec, owner: Owner) -> Operation:
        """Makes, changes or repairs a cluster. It is planned here too, so that a faulty spec is refused at once.

        The fabric is claimed exclusively only while it is made: nothing else can use or remove the half-made fabric.
        """
        if self.plan(spec, owner).of(StepKind.ADD):
            require_turn(self.context, spec, owner)
        body, claims = self.up_body(spec, owner)
        return self._start("up", spec.name, body, owner=owner.uid, **claims)

    def up_body(self, spec: ClusterSpec, owner: Owner) -> tuple[Body, dict[str, list[str]]]:
        """The body of `up`, and its claims."""

        def body(task: Task) -> dict[str, Any]:
            if not self.context.fabric_is_up():
                task.claim(Claims.of(exclusive=[FABRIC]))  # it was up at the request, perhaps
                if self.context.managers is None:
                    task.progress("making the embedded fabric: two sites of two hosts")
            managers = self.context.ensure_managers()
            task.downgrade_claim(FABRIC)
            plan = managers.clusters.plan(spec, owner)
            task.check()
            self._end_jobs_before_repair(managers, plan)
            cluster = managers.clusters.apply(plan, task.progress, task.cancelled)
            cluster = cluster.model_copy(update={"lease": self.context.store.leases.of(cluster.name)})
            nodes = [node.model_dump(mode="json") for node in self.context.store.nodes(cluster.name)]
            return {"cluster": cluster.model_dump(mode="json"), "nodes": nodes, "plan": plan.model_dump(mode="json")}

        claims = [cluster_claim(spec.name), *([] if self.context.fabric_is_up() else [FABRIC])]
        return body, {"shared": [FABRIC], "exclusive": claims}

    def _end_jobs_before_repair(self, managers: Managers, plan: ClusterPlan) -> None:
        """Ends the jobs with ranks on nodes that will be repaired. The monitor may not have seen yet that these nodes
        are lost, and will not see it afterwards."""
        for step in plan.of(StepKind.REPAIR):
            node = find_node(self.context.store, step.node)
            for job in self.context.store.jobs(plan.spec.name):
                if job.state == JobState.RUNNING:
                    self.context.end_job_on_lost_node(managers, job, node)

    def down(self, name: str, end_jobs: bool = False) -> Operation:
        """Removes the cluster. Refused while jobs run on it, unless `end_jobs`: then they are ended."""
        return self._down(name, end_jobs, f"its cluster {name} was taken down by {self.peer.who}", lambda _: None)

    def end(self, name: str, reason: str, still: Callable[[], None]) -> Operation:
        """Removes the cluster with its jobs, for a reason other than its user's command; `still` refuses when that
        does not hold any more."""

        def begin(task: Task) -> None:
            still()
            task.progress(reason)

        return self._down(name, True, reason, begin)

    def _down(self, name: str, end_jobs: bool, reason: str, begin: Callable[[Task], None]) -> Operation:
        owner = self._require_cluster(name).owner_uid
        managers = self.context.require_managers()
        managers.clusters.check_down(name)

        def under_way() -> list[Job]:
            found = [job for job in self.context.store.jobs(name) if job.state.under_way]
            if found and not end_jobs:
                shown = ", ".join(f"{job.id} ({Path(job.argv[0]).name})" for job in found)
                why = f"it would end {shown}"
                raise Refused(Code.WRONG_STATE, f"jobs run on {name}", why, f"wherry down {name} --yes")
            return found

        under_way()

        def jobs() -> list[str]:
            return [job_claim(job.id) for job in self.context.store.jobs(name)]

        def body(task: Task) -> dict[str, Any]:
            begin(task)
            managers.clusters.check_down(name)  # again, before any job is ended
            task.claim(Claims.of(exclusive=jobs()))  # again: a run may have ended between the request and its claim
            nodes = [node.name for node in self.context.store.nodes(name)]
            for job in under_way():
                task.progress(f"ending job {job.id}")
                managers.jobs.cancel(job.id, reason)
            managers.jobs.remove(name, reason)
            self.context.close_inside(name)
            managers.clusters.down(name, task.progress)
            return {"cluster": name, "nodes": nodes}

        claims = [cluster_claim(name), *jobs()]
        return self._start("down", name, body, may_cancel=False, shared=[FABRIC], exclusive=claims, owner=owner)

    def run(self, request: JobRequest) -> Operation:
        """Starts a job; the operation ends when the program was started.

        User's files that nodes lack are bound into them first, and the job's directory if they see it read-only,
        with the cluster claimed exclusively meanwhile.
        It waits for another run that is doing this.
        """
        find_cluster(self.seen, request.cluster)
        require_lease(self.context.store, request.cluster)
        managers, claim = self.context.require_managers(), cluster_claim(request.cluster)
        jobs = managers.jobs
        plan, binds = jobs.plan(request), managers.clusters.binds
        wishes = binds.unseen(request.cluster, plan.mounts)
        wishes += (plan.wished,) if plan.wished and not is_bound(plan.wished, wishes) else ()
        claims = Claims.of([FABRIC, claim])
        if plan.further:
            binds.check(request.cluster, plan.further)
        if plan.further or wishes:
            binds.check_still(request.cluster, wishes)
            claims = Claims.of([FABRIC], [claim])
        busy = self.context.operations.conflicting_operation(claims.shared, claims.exclusive)
        waits = busy is not None and busy.kind in _BRIEF

        def body(task: Task) -> dict[str, Any]:
            if waits:
                self._claim_after_others(task, claims)
            if plan.warning:
                task.progress(plan.warning)
            if plan.placed:
                task.progress(plan.placed)
            if plan.further:
                binds.add(request.cluster, request.owner, plan.further, task.progress)
            for directory in wishes:
                binds.try_to_add(request.cluster, request.owner, directory, task.progress)
            if plan.further or wishes:
                task.downgrade_claim(claim)
            if plan.unwritable:
                task.progress(not_bound(request.owner.cwd, request.cluster, plan.unwritable))
            task.progress(f"waiting until all nodes of {request.cluster} answer")
            self.context.open_inside(request.cluster)
            job = jobs.start(plan, task.check, task.operation.id, self.peer.uid)
            if task.cancelled():  # looked at once: a later cancel finds a job, and its client ends that
                jobs.cancel(job.id)
                task.check()
            return {"job": job.model_dump(mode="json")}

        now = Claims.of([FABRIC]) if waits else claims
        owner = request.owner.uid
        return self._start("run", request.cluster, body, shared=now.shared, exclusive=now.exclusive, owner=owner)

    def _claim_after_others(self, task: Task, claims: Claims) -> None:
        """Claims once the operations that start programs have done so. WRONG_STATE when another kind has the claims, or
        they are not free in time."""
        operations, deadline = self.context.operations, time.monotonic() + _WAIT
        while True:
            busy = operations.conflicting_operation(claims.shared, claims.exclusive, task.operation.id)
            in_vain = busy is not None and (busy.kind not in _BRIEF or time.monotonic() > deadline)
            try:
                task.claim(claims)
                return
            except Refused:
                if in_vain:
                    raise
            task.check()
            if busy:
                task.progress(f"waiting until {busy.id} ({busy.kind} {busy.target}) has started its program")
                while operations.wait(busy.id, _LOOK).state is OperationState.RUNNING and time.monotonic() < deadline:
                    task.check()

    def show_move(self, id: str) -> Move:
        """One move. NOT_FOUND."""
        move = self.seen.move(id)
        if move is None:
            raise Refused(Code.NOT_FOUND, f"there is no move {id!r}", "", "wherry op list")
        return move

    def ledger(self) -> Ledger:
        """Predicted and measured values of the finished moves."""
        return ledger(self.seen.moves(), self.seen.jobs())

    def predict(self, node: str, host: str, options: MoveOptions) -> Prediction:
        """The predicted cost of a move. Refused when the move is impossible; changes nothing."""
        find_node(self.seen, node)
        plan = self.context.require_managers().moves.plan(node, host, options, _SAMPLE)
        if plan.predicted is None:
            raise plan.unpredicted or Bug("a move plan has neither a prediction nor an error")
        return plan.predicted

    def move(self, node: str, host: str, options: MoveOptions, fault: str | None = None) -> Operation:
        """Moves a node live. `fault` makes the move fail on purpose (see `wherry.move.faults`)."""
        cluster = find_node(self.seen, node).cluster
        owner = self._require_cluster(cluster).owner_uid
        require_lease(self.context.store, cluster)
        moves = self.context.require_managers().moves
        plan = moves.plan(node, host, options, fault=fault)

        def body(task: Task) -> dict[str, Any]:
            move = moves.apply(plan, task.progress, task.cancelled, task.operation.id)
            phases = ", ".join(f"{phase} {format_duration(seconds)}" for phase, seconds in move.phases.items())
            task.progress(f"{node}: {phases}")  # the phases of the downtime report nothing, to be short
            return {"move": move.model_dump(mode="json")}

        claims = {"shared": [FABRIC, cluster_claim(cluster)], "exclusive": [node_claim(node)]}
        return self._start("move", f"{node} to {host}", body, owner=owner, **claims)

    def cancel_job(self, id: str, grace: float | None = None) -> Operation:
        """Ends a job, if it has not ended: with a `grace` its ranks get SIGTERM, and have so many seconds. Its cluster
        may be changed meanwhile, but not removed."""
        job = self.job(id)
        self.peer.require(job.uid, f"job {id}")
        jobs = self.context.require_managers().jobs

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"ending job {id}")
            return {"job": jobs.cancel(id, grace=grace).model_dump(mode="json")}

        return self._start("job cancel", id, body, may_cancel=False, shared=[job_claim(id)], owner=job.uid)

    def signal_job(self, id: str, name: SignalName) -> Operation:
        """Sends a signal to a job's ranks; the result has how many got it, and nodes that did not answer. WRONG_STATE
        when it does not run."""
        job = self.job(id)
        self.peer.require(job.uid, f"job {id}")
        number, jobs = signal.Signals[f"SIG{name}"], self.context.require_managers().jobs

        def body(task: Task) -> dict[str, Any]:
            deadline = time.monotonic() + _FIRST_RANK
            while (found := jobs.send_signal(id, number, _SIGNAL_SECONDS))[0] == 0 and time.monotonic() < deadline:
                time.sleep(_LOOK)
            sent, silent = found
            if sent == 0:
                why = "; ".join(f"{node}: {why}" for node, why in silent.items()) or "it has no ranks"
                raise Failed(Code.FAILED, f"no rank of job {id} got SIG{name}", why, f"wherry job show {id}")
            self.context.store.add_event("job.signal", id, f"SIG{name} to {sent} processes")
            return {"job": id, "signal": name, "sent": sent, "silent": silent}

        return self._start("job signal", id, body, may_cancel=False, shared=[job_claim(id)], owner=job.uid)

    def operation(self, id: str, after: int) -> tuple[Operation, list[str]]:
        """An operation, and its lines of progress from number `after` on. NOT_FOUND."""
        operation = self._operation(id)
        return operation, self.context.operations.lines(id, after)  # read after the state: none is missed at the end

    def events(self, after: int, limit: int, newest: bool = False) -> list[Event]:
        """At most `limit` events after number `after`, the first or the `newest` of them, oldest first."""
        return self.seen.events(after, limit, newest=newest)

    def cancel_operation(self, id: str) -> Operation:
        """Asks an operation to end."""
        operation = self._operation(id)
        mine = operation.owner if operation.owner is not None and self.peer.seen_uids is not None else operation.uid
        self.peer.require(mine, f"operation {id}")
        return self.context.operations.cancel(id)

    def _operation(self, id: str) -> Operation:
        operation = self.context.operations.get(id)
        if not self.peer.sees(operation.uid, operation.owner):
            raise no_operation(id)
        return operation

    def job(self, id: str) -> Job:
        """The job. Its watching thread writes its end, after killing its leftovers on the nodes. NOT_FOUND."""
        return find_job(self.seen, id)

    def output(self, id: str, offset: int, limit: int) -> dict[str, Any]:
        """Chunks of output from `offset` on; `end` is true when the job has ended and no output follows."""
        job = self.job(id)
        self.peer.require(job.uid, f"the output of job {id}")
        chunks, next = self.context.require_managers().jobs.output(id, offset, limit)
        return {"job": job, "chunks": chunks, "next": next, "end": not job.state.under_way and not chunks}

    def input(self, id: str, offset: int, data: bytes, end: bool) -> tuple[int, bool]:
        """Writes a piece of rank 0's input. Returns the next offset expected, and whether the end was written."""
        self.peer.require(self.job(id).uid, f"the input of job {id}")
        return self.context.require_managers().jobs.input(id, offset, data, end)

    def nodes(self, cluster: str | None) -> list[Node]:
        """All nodes, or a cluster's. NOT_FOUND."""
        return self.seen.nodes(self._known(cluster))

    def show_node(self, name: str) -> dict[str, Any]:
        """A node, its resource usage (None when it does not run), and its moves since its cluster was made."""
        node, managers = find_node(self.seen, name), self.context.require_managers()
        try:
            usage = managers.drivers[node.kind].usage(managers.placements.placement(node)).model_dump(mode="json")
        except (WherryError, OSError):
            usage = None
        found = self.context.store.moves()
        ids, after = [move.id for move in found], find_cluster(self.context.store, node.cluster).after_move
        first = ids.index(after) + 1 if after in ids else 0
        moves = [move.model_dump(mode="json") for move in found[first:] if move.node == name]
        return {"node": node.model_dump(mode="json"), "usage": usage, "moves": moves}

    def console(self, name: str) -> dict[str, Any]:
        """The end of a node's console output, as text."""
        node = find_node(self.seen, name)
        self._require_cluster(node.cluster)
        files = self.context.require_managers().drivers[node.kind].console_files(name)
        if files is None:
            why = f"it is a {node.kind}; its programs write to the output of their job"
            raise Refused(Code.UNSUPPORTED, f"node {name} has no console", why, f"wherry logs {node.cluster}")
        return {"node": name, "text": f"\nwherry: {name} was restarted\n".join(map(_end_of, files))}

    def cluster_of(self, node: str) -> str:
        """The name of a node's cluster. NOT_FOUND."""
        return find_node(self.seen, node).cluster

    def program_owner(self, named: Owner | None, cluster: str) -> Owner:
        """As whom a program of the peer runs on a cluster: for an account, as the cluster's owner. NOT_FOUND."""
        if isinstance(self.peer, AccountCaller):
            return self.peer.owner_of_cluster(named, find_cluster(self.seen, cluster).owner_uid)
        return self.peer.owner(named)

    def _known(self, cluster: str | None) -> str | None:
        return None if cluster is None else find_cluster(self.seen, cluster).name

    def _require_cluster(self, name: str) -> Cluster:
        cluster = find_cluster(self.seen, name)
        self.peer.require(cluster.owner_uid, f"cluster {name}")
        return cluster

    def _start(self, kind: str, target: str, body: Body, **claims: Any) -> Operation:
        return self.context.operations.start(kind, target, body, uid=self.peer.uid, **claims)


def _end_of(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _CONSOLE))
            return opened.read().decode(errors="replace")
    except FileNotFoundError:  # the node is being removed
        return ""
