"""The steps before a job's launcher starts: the request is validated, its nodes are ready and have its files.

Invariant: nothing of a job is recorded here, so an error leaves nothing to undo but files staged on its nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from wherry.base.bytes_text import to_native
from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.base.ids import new_id
from wherry.base.paths import Instance, native_program
from wherry.cluster.lookup import find_cluster, is_moving
from wherry.cluster.placements import Placements, secret_name
from wherry.fabric.protocol import Fabric
from wherry.job import (
    file_visibility,
    inside,
    launcher_command,
    oversubscription,
    preload,
    readiness,
    staging,
    validation,
)
from wherry.job.node_agents import NodeAgents
from wherry.job.rank_choice import RankChoice
from wherry.job.rank_map import nodes_of, rank_map
from wherry.job.validation import JobPlan
from wherry.model.cpu_mask import masked
from wherry.model.job_request import JobRequest, Layout
from wherry.model.kept_words import kept_words
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Job, JobState, NodeState
from wherry.node.rank_sites import site_runs
from wherry.store.store import Store


class JobStart:
    """Starts of the jobs below `directory`. `library`: the path of a library of Wherry's, by its name."""

    def __init__(
        self,
        store: Store,
        fabric: Fabric,
        placements: Placements,
        agents: NodeAgents,
        instance: Instance,
        directory: Path,
        library: Callable[[str], Path],
    ) -> None:
        self._store, self._fabric, self._placements = store, fabric, placements
        self._agents = agents
        self._choice = RankChoice(store, fabric)
        self._library = library
        self._state, self._directory = instance.state, directory
        self._closed = (str(instance.state.parent), str(instance.run.parent))

    def plan(self, request: JobRequest) -> JobPlan:
        """Validates the request and finds its program and MPI. Refused when the cluster cannot run it; changes nothing.

        The only validation of a job: `prepare` takes the plan and runs no probe (`mpirun --version`) again.
        """
        found = self.require_usable(request.cluster)
        plan = validation.plan(request, found, self._closed)
        nodes = self._store.nodes(request.cluster)
        plan = self._choice.applied(plan, nodes)
        oversubscription.require_room(nodes, rank_map(nodes, request.ranks, plan.request.layout))
        return replace(plan, warning=oversubscription.warning(nodes, request.ranks))

    def prepare(
        self, plan: JobPlan, check: Callable[[], None], operation: str, starter: int | None
    ) -> tuple[Job, Cluster, launcher_command.LaunchPlan]:
        """The row of a planned job and its launcher's command, when its nodes are ready and have its files."""
        request, owner, cluster = plan.request, plan.request.owner, self.require_usable(plan.request.cluster)
        validation.check_cluster(request, cluster)
        launch = self._launch_request(cluster, plan)
        by_rank = request.layout != Layout() or launch.sites or launch.spawned_on

        def watch() -> None:
            check()
            self._require_not_lost(request.cluster)

        readiness.require_ready(
            cluster, self._agents.endpoints(cluster, launch.nodes), watch, partial(is_moving, self._store)
        )
        self._stage(cluster, launch, watch)
        check()
        argv, argv_cut = kept_words(request.argv)
        job = Job(
            id=launch.id,
            cluster=request.cluster,
            argv=argv,
            argv_cut=argv_cut,
            ranks=request.ranks,
            expected=request.expected,
            mpi=str(launch.mpi),
            uid=owner.uid,
            gid=owner.gid,
            cwd=owner.cwd,
            state=JobState.STARTING,
            created=now(),
            operation=operation,
            starter=starter,
            nodes=tuple(dict.fromkeys(node.name for node in (*nodes_of(launch.map), *launch.spawned_on))),
            rank_nodes=tuple(node.name for node in launch.map) if by_rank else (),
            timeout=request.timeout,
            program=plan.program,
            placed=plan.placed,
            site_map=site_runs([launch.sites[node.host] for node in launch.map]) if launch.sites else "",
            deterministic=request.deterministic,
            uncounted=plan.uncounted,
        )
        return job, cluster, launcher_command.plan(launch)

    def require_usable(self, name: str) -> Cluster:
        """The cluster. Refused where nothing can run on its nodes."""
        found = find_cluster(self._store, name)
        if self._fabric.driver == "fake":
            why = "its nodes exist in memory only"
            raise Refused(Code.UNSUPPORTED, "the fabric fake runs no jobs", why, "wherry fabric show")
        return found

    def _launch_request(self, cluster: Cluster, plan: JobPlan) -> launcher_command.LaunchRequest:
        request, found = plan.request, plan.mpi
        owner, nodes = request.owner, tuple(self._store.nodes(cluster.name))
        id, whole = new_id("job"), "container" not in cluster.spec.kinds
        ranks_per_cpu = (request.ranks + self._running_ranks()) / len(os.sched_getaffinity(0))
        preloads = preload.chosen(found, request.env, whole, request.plain)
        return launcher_command.LaunchRequest(
            id=id,
            mpi=found,
            programs=plan.programs,
            map=rank_map(nodes, request.ranks, request.layout),
            sites=self._sites(request.deterministic) if request.site_collectives else {},
            deterministic=request.deterministic,
            spawned_on=tuple(node for node in nodes if request.may_spawn_on(node.name)),
            inside=inside.environment(cluster, id, self._store.secret(secret_name(cluster.name)), request.host_memory),
            nodes=nodes,
            owner=owner,
            env=masked(request.env, cluster.spec.without_cpu_features),
            inherited=request.inherited,
            head_address=cluster.head_address,
            subnet=cluster.subnet,
            keys={node.name: self._placements.key(node) for node in nodes},
            directory=self._directory / id / "own",
            agent=file_visibility.world_readable(native_program("wherry-rsh"), owner, self._state / "bin"),
            preloads=self._libraries(preloads, owner),
            launcher_preloads=self._libraries(preload.for_launcher(found), owner),
            input=request.input,
            whole=whole,
            plain=request.plain,
            ranks_per_cpu=ranks_per_cpu,
            bind_to=request.layout.bind_to,
            timeout=request.timeout,
            launcher_args=request.launcher_args,
        )

    def _libraries(self, wanted: Iterable[preload.Library], owner: Owner) -> tuple[Path, ...]:
        """Where the owner's processes find them."""
        kept = self._state / "bin"
        return tuple(file_visibility.world_readable(self._library(one.name), owner, kept) for one in wanted)

    def _sites(self, deterministic: bool) -> dict[str, str]:
        """The site of each host; none where all are at one, if not `deterministic` (it combines values there too)."""
        found = {host.name: host.site for host in self._fabric.spec.hosts}
        return found if deterministic or len(set(found.values())) > 1 else {}

    def _running_ranks(self) -> int:
        """Of all jobs: the emulated hosts share this machine's processors."""
        return sum(job.ranks for job in self._store.jobs_under_way() if job.computes)

    def _require_not_lost(self, name: str) -> None:
        """Failed when a node of the cluster is lost by now: a start would wait for it in vain."""
        for node in self._store.nodes(name):
            if node.state == NodeState.LOST:
                what, why = f"node {node.name} is lost", "its first process ended while the job was started"
                raise Failed(Code.UNREACHABLE, what, why, "wherry up FILE starts it again, then repeat the command")

    def _stage(self, cluster: Cluster, launch: launcher_command.LaunchRequest, check: Callable[[], None]) -> None:
        """Copies the job's files to its virtual machines, which do not see this machine's."""
        targets = staging.targets(launch.map)
        if not targets:
            return
        owner = launch.owner
        programs = [Path(to_native(one.argv[0])) for one in launch.programs]
        files = staging.gather(cluster, programs, owner, launch.env, launch.ours, check)
        endpoints = dict(self._agents.endpoints(cluster, launch.nodes))
        staging.copy(cluster, [(node, endpoints[node.name]) for node in targets], files, owner, launch.mpi, check)
