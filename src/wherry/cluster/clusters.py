"""The life cycle of clusters: plan, apply, down, and the detection of lost nodes.

Invariants: a row is written before the object that it names is made, and deleted after that is removed, so half-made
objects can be repaired or removed; `apply` decides nothing, and refuses when the state has changed since the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.base.progress import Cancelled, Check, Progress, never, never_raises, quiet
from wherry.cluster.each import attempt, for_each
from wherry.cluster.host_loads import HostLoads
from wherry.cluster.hot_binds import HotBinds
from wherry.cluster.leases import new_lease, planned_lease
from wherry.cluster.lookup import DRAINED_NODE, find_cluster, find_host, known_hosts
from wherry.cluster.owners_quota import require_quota
from wherry.cluster.placements import Placements, network_of_cluster, new_secret, secret_name
from wherry.cluster.plan import ClusterPlan, Step, StepKind, make_plan, need_of
from wherry.fabric.protocol import Fabric, FileServers
from wherry.model.network import address_of, free_number, mac_of, network_of
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState, Move, Node, NodeState
from wherry.model.spec.cluster import ClusterSpec, Flavor
from wherry.node.console_tail import console_tail
from wherry.node.protocol import NodeDriver
from wherry.schedule.pinning import taken_on
from wherry.schedule.placement import Used, shortage, used_by
from wherry.store.store import Store


class Clusters:
    """Makes, repairs and removes clusters.

    The caller holds the cluster's claim exclusively (see `wherry.service.claims`). Clusters and moves compete for room
    on hosts, clusters for numbers of networks: both are taken under `Store.reserving`.
    """

    def __init__(
        self, store: Store, fabric: Fabric, drivers: dict[str, NodeDriver], servers: FileServers | None = None
    ) -> None:
        self._store = store
        self._servers = servers
        self._fabric = fabric
        self._drivers = drivers
        self._placements = Placements(store, fabric)
        self.loads = HostLoads(fabric)
        self.binds = HotBinds(store, fabric, drivers, self._placements)

    def plan(self, spec: ClusterSpec, owner: Owner) -> ClusterPlan:
        """The plan for `apply`. Changes nothing; Refused with the reason when the spec cannot be satisfied."""
        plan = make_plan(self._store, self._fabric, self._drivers, self._placements, spec, owner, self.loads)
        old = self._store.cluster(spec.name)
        if old:
            self.binds.require(old, owner, plan.further)
        require_quota(self._store, plan)
        self._require_disks(plan)
        served = self._still_served(plan, old) if old else self._served(plan)
        return plan.model_copy(update=served | planned_lease(self._store, spec, owner.uid, old))

    def _require_disks(self, plan: ClusterPlan) -> None:
        """NO_CAPACITY when hosts have no room for the disks of new nodes."""
        wanted = Counter[str]()
        for step in plan.of(StepKind.ADD):
            wanted[step.host] += plan.spec.flavor(step.index).disk
        if +wanted and (why := self._drivers["container"].disk_obstacle(wanted)):
            what, remedy = f"{plan.spec.name} does not fit", "smaller disks, or tmp: memory, in the cluster's file"
            raise Refused(Code.NO_CAPACITY, what, why, remedy)

    def _served(self, plan: ClusterPlan) -> dict[str, object]:
        """The directories of its user that a new cluster's virtual machines see, or why none."""
        machines = [flavor for flavor in map(plan.spec.flavor, range(plan.spec.size)) if flavor.kind == "vm"]
        if not machines or self._servers is None:
            return {}
        if why := self._servers.obstacle() or self._cannot_mount(machines):
            return {"unserved": why}
        served = tuple(filter(self._servers.can_export, plan.binds))
        left = ", ".join(path for path in plan.binds if path not in served)
        why = f"{left} cannot be exported (the system's own, remote, or without file handles)" if left else ""
        return {"served": served, "unserved": why}

    def _still_served(self, plan: ClusterPlan, old: Cluster) -> dict[str, object]:
        """As `_served`, of a cluster that there is: a running machine cannot be given more. Refused when a new machine
        would see less than the others, as no job copies served files."""
        flavors = [plan.spec.flavor(step.index) for step in plan.of(StepKind.ADD, StepKind.REPAIR)]
        machines = [flavor for flavor in flavors if flavor.kind == "vm"]
        if old.served and (why := self._cannot_mount(machines)):
            what = f"new machines of {old.name} cannot see your directories as the others do"
            raise Refused(Code.UNSUPPORTED, what, why, f"wherry down {old.name}, then wherry up FILE")
        unserved = "it was made without" if machines and self._servers and not old.served else ""
        return {"served": old.served, "unserved": unserved}

    def _cannot_mount(self, machines: Sequence[Flavor]) -> str:
        return next(filter(None, map(self._drivers["vm"].files_obstacle, machines)), "") if machines else ""

    def apply(self, plan: ClusterPlan, progress: Progress = quiet, cancelled: Cancelled = never) -> Cluster:
        """Carries out the plan. Failed PARTLY_DONE when some nodes could not be made; another `up` repairs that."""
        name = plan.spec.name
        if plan.unserved:
            all_of = "all of " if plan.served else ""
            progress(f"virtual machines of {name} do not see {all_of}your directories: {plan.unserved}")
        errors = self._make(plan, self._reserve(plan), progress, cancelled)
        self._fabric.update_paths()  # a connection that is made before has small segments for its whole life
        cluster = find_cluster(self._store, name)
        if not errors:
            cluster = cluster.model_copy(update={"state": ClusterState.RUNNING, "reason": ""})
            self._store.put_cluster(cluster)
            why = {step.node: f"{step.host}: {step.why}" for step in plan.of(StepKind.ADD)}
            self._store.add_event("cluster.up", name, f"{name} is up with {plan.spec.size} nodes", placed=why)
            if plan.further:
                self.binds.add(name, plan.owner, plan.further, progress)
            return find_cluster(self._store, name)
        reason = errors[0]
        self._store.put_cluster(cluster.model_copy(update={"state": ClusterState.PARTLY, "reason": reason}))
        self._store.add_event("cluster.partly", name, reason, errors=errors)
        code = Code.CANCELLED if cancelled() else Code.PARTLY_DONE
        remedy = f"wherry up FILE repairs it, wherry down {name} removes it"
        raise Failed(code, f"cluster {name} is up in part", "; ".join(errors[:3]), remedy)

    def check_down(self, name: str) -> Cluster:
        """The cluster, if it can be removed. Refused while a move of one of its nodes is unfinished."""
        cluster = find_cluster(self._store, name)
        for move in self._store.moves(unfinished=True):
            if move.cluster == name:
                what = f"the move of {move.node} from {move.source} to {move.destination} is unfinished"
                why = str((move.error or {}).get("why", "")) or f"move {move.id} is in phase {move.phase}"
                raise Refused(Code.WRONG_STATE, what, why, "wherry status")
        return cluster

    def down(self, name: str, progress: Progress = quiet) -> None:
        """Removes the cluster, also a half-made one. Refused as by `check_down`."""
        cluster = self.check_down(name)
        self._store.put_cluster(cluster.model_copy(update={"state": ClusterState.REMOVING, "reason": ""}))
        errors = self._for_each(self._remove, self._store.nodes(name), progress)
        errors += attempt("its network", lambda: self._remove_network(cluster))
        if errors:
            reason = "; ".join(errors[:3])
            self._store.put_cluster(cluster.model_copy(update={"state": ClusterState.REMOVING, "reason": reason}))
            raise Failed(Code.PARTLY_DONE, f"cluster {name} is removed in part", reason, f"wherry down {name}")
        self._store.drop_secret(secret_name(name))
        self._store.drop_cluster(name)
        self._store.add_event("cluster.down", name, f"{name} is removed", cluster.owner_uid)

    def restart(self, name: str, nodes: Collection[str], progress: Progress = quiet) -> list[Node]:
        """Ends nodes of a cluster, and starts each anew at its host, without its programs and its own files; returns
        them. Failed PARTLY_DONE when some could not be started: these are lost. Refused as by `check_down`."""
        cluster = self.check_down(name)
        self._store.put_cluster(cluster.model_copy(update={"state": ClusterState.MAKING}))
        chosen = [node for node in self._store.nodes(name) if node.name in nodes]
        errors = self._for_each(self._restart, chosen, progress)
        self._fabric.update_paths()
        cluster, rows = find_cluster(self._store, name), self._store.nodes(name)
        whole = len(rows) == cluster.spec.size and all(node.state == NodeState.RUNNING for node in rows)
        state = ClusterState.RUNNING if whole else ClusterState.PARTLY
        reason = "" if whole else errors[0] if errors else cluster.reason
        self._store.put_cluster(cluster.model_copy(update={"state": state, "reason": reason}))
        if errors:
            remedy = f"wherry up FILE repairs it, wherry down {name} removes it"
            raise Failed(Code.PARTLY_DONE, f"nodes of {name} were not restarted", "; ".join(errors[:3]), remedy)
        text = f"restarted: {', '.join(node.name for node in chosen)}"
        self._store.add_event("cluster.restart", name, text, cluster.owner_uid)
        return [node for node in rows if node.name in nodes]

    def _restart(self, node: Node) -> None:
        self._store.put_node(node.model_copy(update={"state": NodeState.LOST}))  # `up` repairs leftovers of a kill
        self._unmake(node)
        self._run(node, never_raises)

    def gone(self, name: str) -> list[Node]:
        """The nodes that should run and do not. Changes nothing; slow when a host does not answer."""
        running = [node for node in self._store.nodes(name) if node.state == NodeState.RUNNING]
        try:
            return [node for node in running if not self._driver(node).alive(self._placements.placement(node))]
        except Refused:  # the cluster was removed meanwhile
            return []

    def lose(self, name: str, gone: Sequence[Node]) -> list[Node]:
        """Marks as lost those of the nodes found gone whose rows are unchanged since; returns them."""
        marked = list[Node]()
        for node in gone:
            if self._store.node(node.name) == node:
                marked.append(node.model_copy(update={"state": NodeState.LOST}))
                self._store.put_node(marked[-1])
                text = f"{node.name} on {node.host} ended by itself{self._last_output(node)}"
                self._store.add_event("node.lost", node.name, text)
        cluster = self._store.cluster(name)
        lost = [node for node in self._store.nodes(name) if node.state == NodeState.LOST]
        if lost and cluster is not None and cluster.state == ClusterState.RUNNING:
            reason = f"{lost[0].name} is lost{self._last_output(lost[0])}"
            self._store.put_cluster(cluster.model_copy(update={"state": ClusterState.PARTLY, "reason": reason}))
        return marked

    def _last_output(self, node: Node) -> str:
        """The last output on a node's console, perhaps a kernel panic, and the command that shows all of it."""
        files = self._driver(node).console_files(node.name)
        tail = console_tail(files[-1]) if files else ""
        return f"; its last output: {tail} (wherry logs --node {node.name})" if tail else ""

    def _reserve(self, plan: ClusterPlan) -> Cluster:
        """Writes the rows of everything that will be made. Refused when rows have changed so that the plan is void."""
        with self._store.reserving:
            spec, old = plan.spec, self._store.cluster(plan.spec.name)
            if (old.network if old else None) != plan.network:
                what, why = f"cluster {spec.name} has changed", "it was made or removed after this was planned"
                raise Refused(Code.WRONG_STATE, what, why, "run wherry up again")
            self._still_fits(plan)
            require_quota(self._store, plan)
            if old:
                network = network_of_cluster(old)
            else:
                pool = self._fabric.spec.pool
                network = network_of(pool, free_number(pool, [c.network for c in self._store.clusters()]))
                self._store.put_secret(secret_name(spec.name), new_secret())
            cluster = Cluster(
                name=spec.name,
                spec=spec,
                state=ClusterState.MAKING,
                network=network.number,
                subnet=network.subnet,
                head_host=old.head_host if old else plan.head_host,
                owner_uid=plan.owner.uid,
                # Running nodes know the owner with the groups of the first `up`, and refuse any other.
                owner_gid=old.owner_gid if old else plan.owner.gid,
                owner_groups=old.owner_groups if old else plan.owner.groups,
                binds=plan.binds,
                binding=old.binding if old else (),
                served=plan.served,
                created=old.created if old else now(),
                after_move=old.after_move if old else self._store.newest_move(),
            )
            self._store.put_cluster(cluster)
            if not plan.keeps_lease:
                self._store.leases.put(spec.name, new_lease(plan.lease))
            for step in plan.of(StepKind.ADD):
                flavor = spec.flavor(step.index)
                self._store.put_node(
                    Node(
                        name=step.node,
                        cluster=spec.name,
                        index=step.index,
                        host=step.host,
                        address=address_of(network, step.index),
                        mac=mac_of(network, step.index),
                        kind=flavor.kind,
                        cpus=flavor.cpus,
                        memory=flavor.memory,
                        disk=flavor.disk,
                        pin=step.pin,
                        since=now(),
                    )
                )
            return cluster

    def _still_fits(self, plan: ClusterPlan) -> None:
        hosts = {host.name: host for host in known_hosts(self._store, self._fabric, asked=())}
        steps = plan.of(StepKind.ADD, StepKind.REPAIR)
        changed = {step.node for step in plan.of(StepKind.ADD, StepKind.REPAIR, StepKind.REMOVE)}
        others = [node for node in self._store.nodes() if node.name not in changed]
        moves = self._store.moves(unfinished=True)
        used = used_by(others, moves)
        for step in steps:
            need = need_of(plan.spec, step.index)
            if step.host not in hosts:
                what, why = f"there is no host {step.host} any more", "the fabric was changed after this was planned"
                raise Refused(Code.WRONG_STATE, what, why, "run wherry up again")
            if reason := shortage(hosts[step.host], used.get(step.host, Used()), need):
                raise Refused(Code.NO_CAPACITY, f"{step.node} no longer fits", reason, "run wherry up again")
            _require_pin(step, others, moves)
            used[step.host] = used.get(step.host, Used()).plus(need)

    def _make(self, plan: ClusterPlan, cluster: Cluster, progress: Progress, cancelled: Cancelled) -> list[str]:
        """Carries out the steps; returns the errors, one text per node."""

        def network() -> None:
            head = self._placements.head_port(self._move_head(cluster, plan.head_host))
            self._fabric.network_up(head.network)
            self._fabric.port_up(head)
            self._fabric.port_plug(head)
            self._serve(find_cluster(self._store, cluster.name), lambda: True)

        def start(step: Step) -> None:
            def check() -> None:
                if cancelled():
                    raise Failed(Code.CANCELLED, f"{step.node} was not started", "cancelled")

            check()
            self._start(step, plan, check)

        progress(f"network of {cluster.name}")
        if errors := attempt("its network", network):
            return errors
        surplus = [self._store.node(step.node) for step in plan.of(StepKind.REMOVE)]
        errors = self._for_each(self._remove, [node for node in surplus if node], progress)
        return errors + self._for_each(start, plan.of(StepKind.REPAIR, StepKind.ADD), progress)

    def serve(self, cluster: Cluster) -> None:
        """Starts the server of the user's directories if the cluster has one and it does not run; not while the cluster
        is changed."""

        def still() -> bool:
            row = self._store.cluster(cluster.name)
            if row is None or row.state not in (ClusterState.RUNNING, ClusterState.PARTLY):
                return False
            return row == cluster.model_copy(update={"state": row.state, "reason": row.reason})

        self._serve(cluster, still)

    def server_log(self, cluster: Cluster) -> Path | None:
        """The log of that server."""
        return self._servers.log(cluster.name) if cluster.served and self._servers else None

    def _serve(self, cluster: Cluster, still: Callable[[], bool]) -> None:
        if cluster.served and self._servers:
            netns, user = self._fabric.port_netns(self._placements.head_port(cluster)), cluster.owner_uid
            address, subnet = cluster.head_address, cluster.subnet
            self._servers.up(cluster.name, netns, address, subnet, cluster.served, (user, cluster.owner_gid), still)

    def _move_head(self, cluster: Cluster, host: str) -> Cluster:
        """Removes the head from its old host before the row names the new one, so a killed daemon finds either."""
        if cluster.head_host != host:
            if self._servers:
                self._servers.down(cluster.name)
            self._fabric.port_down(self._placements.head_port(cluster))
            cluster = cluster.model_copy(update={"head_host": host})
            self._store.put_cluster(cluster)
        return cluster

    def _start(self, step: Step, plan: ClusterPlan, check: Check) -> None:
        """Starts a planned or lost node at its new host, after the remains of a lost one are removed from the old."""
        node = self._store.node(step.node)
        if node is None:
            raise Failed(Code.WRONG_STATE, f"{step.node} was removed after this was planned", "", "run wherry up again")
        if step.kind == StepKind.REPAIR:
            self._unmake(node)
        self._run(self._take_room(node, step, plan), check)

    def _run(self, node: Node, check: Check) -> None:
        """Starts a node that is nowhere at its host. A node that failed is removed."""
        try:
            port = self._placements.port(node)
            self._fabric.port_up(port)
            self._fabric.port_plug(port)
            self._driver(node).start(self._placements.placement(node), check)
        except Exception:
            attempt(node.name, lambda: self._unmake(node))
            raise
        self._store.put_node(node.model_copy(update={"state": NodeState.RUNNING}))

    def _take_room(self, node: Node, step: Step, plan: ClusterPlan) -> Node:
        """Writes the node's host and pin. Refused when its CPUs, or the room of a host that is another one, were taken
        since `_reserve`. The plan's other repaired nodes count where they will be, whatever their rows still say.

        Until then the row names the old host, where a killed daemon would find the remains.
        """
        host, repaired = step.host, {other.node: other for other in plan.of(StepKind.REPAIR)}
        with self._store.reserving:
            others = [
                other.model_copy(update={"host": to.host, "pin": to.pin}) if (to := repaired.get(other.name)) else other
                for other in self._store.nodes()
                if other.name != node.name
            ]
            moves = self._store.moves(unfinished=True)
            _require_pin(step, others, moves)
            if node.host != host:
                used = used_by(others, moves).get(host, Used())
                found = find_host(known_hosts(self._store, self._fabric, asked=()), host)
                if reason := shortage(found, used, need_of(plan.spec, step.index)):
                    raise Refused(Code.NO_CAPACITY, f"{node.name} no longer fits", reason, "run wherry up again")
            node = node.model_copy(update={"host": host, "state": NodeState.PLANNED, "pin": step.pin})
            self._store.put_node(node)
        return node

    def _remove(self, node: Node) -> None:
        self._unmake(node)
        self._driver(node).forget(node.name)
        self._store.drop_host_flag(DRAINED_NODE + node.name)  # else a restore would move a later node of this name
        self._store.drop_node(node.name)

    def _unmake(self, node: Node) -> None:
        self._driver(node).stop(self._placements.placement(node))
        self._fabric.port_down(self._placements.port(node))

    def _remove_network(self, cluster: Cluster) -> None:
        if self._servers:
            self._servers.down(cluster.name)
        head = self._placements.head_port(cluster)
        self._fabric.port_down(head)
        self._fabric.network_down(head.network)

    def _driver(self, node: Node) -> NodeDriver:
        return self._drivers[node.kind]

    @staticmethod
    def _for_each(act: Callable[..., None], items: Sequence[Node | Step], progress: Progress) -> list[str]:
        return for_each(act, items, _node_name, progress)


def _node_name(item: Node | Step) -> str:
    return item.node if isinstance(item, Step) else item.name


def _require_pin(step: Step, others: Iterable[Node], moves: Iterable[Move]) -> None:
    """Refuses a step whose CPUs one of the other nodes has."""
    if step.pin and (held := taken_on(step.host, others, moves).keys() & set(step.pin.cpus)):
        why = f"CPU {min(held)} of host {step.host} is another node's by now"
        raise Refused(Code.NO_CAPACITY, f"{step.node} no longer fits", why, "run wherry up again")
