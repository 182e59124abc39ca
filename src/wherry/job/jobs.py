"""Jobs: readiness check of the nodes, launch, output, cancel, adoption after a restart.

A job lives in its holder (`wherry-launch`) and its directory, never in this process:

    STATE/jobs/ID/      root's: pid, output, exit (written by the holder), input (read by it), cancelled, lost
    STATE/jobs/ID/own/  its user's: job file, hosts file, the launcher's temporary files

Invariants: a job's row is written before its holder starts; its end is recorded once, after its leftovers on the nodes
were killed; a restarted daemon finds every job by row and directory alone.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.bytes_text import to_native
from wherry.base.clock import now, since_boot
from wherry.base.errors import Code, Failed, Refused
from wherry.base.ids import new_id
from wherry.base.paths import Instance, native_library, native_program
from wherry.base.wait import readable
from wherry.cluster.lookup import find_cluster, find_job, tell_removed
from wherry.cluster.placements import Placements, secret_name
from wherry.fabric.protocol import Fabric
from wherry.job import (
    cleanup,
    crowding,
    ending,
    file_visibility,
    holder_files,
    holder_start,
    inside,
    launcher_command,
    preload,
    readiness,
    signals,
    staging,
    validation,
)
from wherry.job.agent_client import AgentEndpoint
from wherry.job.late_sweeps import LateSweeps
from wherry.job.losses import Losses
from wherry.job.node_counters import NodeCounters
from wherry.job.rank_choice import RankChoice
from wherry.job.rank_map import nodes_of, rank_map
from wherry.job.rank_sites import site_runs
from wherry.job.validation import JobPlan
from wherry.model.cpu_mask import masked
from wherry.model.job_request import JobRequest, Layout
from wherry.model.kept_words import kept_words
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Job, JobState, Node, NodeState
from wherry.node.container.mounts import remove_tree
from wherry.node.protocol import NodeDriver
from wherry.store.store import Store

log = logging.getLogger("wherry.jobs")
_CLEANUP_SECONDS = 60.0
_ENDED = (JobState.ENDED, JobState.CANCELLED, JobState.LOST, JobState.FAILED)


class Jobs:
    """The jobs of an instance. Safe from several threads."""

    def __init__(
        self, store: Store, fabric: Fabric, places: Placements, instance: Instance, drivers: Mapping[str, NodeDriver],
        library: Callable[[str], Path] = native_library,
    ) -> None:  # fmt: skip
        self._store, self._fabric, self._places = store, fabric, places
        self._library = library
        self._counters = NodeCounters(store, places, drivers)
        self._choice = RankChoice(store, fabric)
        self._state = instance.state
        self._closed = (str(instance.state.parent), str(instance.run.parent))
        self._directory = instance.state / "jobs"
        self._settling: dict[str, threading.Lock] = {}
        self._losses = Losses(self._directory)
        self._late = LateSweeps(self._directory, self._sweep, self._swept)
        self._starting, self._watched = set[str](), set[str]()
        self._watching = threading.Lock()

    def directory(self, id: str) -> Path:
        """The directory that the job's holder writes to."""
        return self._directory / id

    def plan(self, request: JobRequest) -> JobPlan:
        """Validates the request and finds its program and MPI. Refused when the cluster cannot run it; changes nothing.

        The only validation of a job: `start` takes the plan and runs no probe (`mpirun --version`) again.
        """
        found = self.require_usable(request.cluster)
        plan = validation.plan(request, found, self._closed)
        nodes = self._store.nodes(request.cluster)
        plan = self._choice.applied(plan, nodes)
        crowding.require_room(nodes, rank_map(nodes, request.ranks, plan.request.layout))
        return replace(plan, warning=crowding.warning(nodes, request.ranks))

    def start(
        self,
        plan: JobPlan,
        check: Callable[[], None] = lambda: None,
        operation: str = "",
        starter: int | None = None,
    ) -> Job:
        """Starts a planned job, for an operation of user `starter`. Refused when the cluster has changed so that it
        cannot run it; Failed when a node does not answer.

        `check` is called several times a second; an exception that it raises aborts the start; nothing is left.
        """
        order, owner, found = plan.request, plan.request.owner, self.require_usable(plan.request.cluster)
        validation.check_cluster(order, found)
        request = self._request(found, plan)
        by_rank = order.layout != Layout() or request.sites or request.spawned_on

        def watch() -> None:
            check()
            self._require_not_lost(order.cluster)

        readiness.require_ready(found, self.endpoints(found, request.nodes), watch, self.moving)
        self._stage(found, request, watch)
        check()
        argv, argv_cut = kept_words(order.argv)
        job = Job(
            id=request.id,
            cluster=order.cluster,
            argv=argv,
            argv_cut=argv_cut,
            ranks=order.ranks,
            expected=order.expected,
            mpi=str(request.mpi),
            uid=owner.uid,
            gid=owner.gid,
            cwd=owner.cwd,
            state=JobState.STARTING,
            created=now(),
            operation=operation,
            starter=starter,
            nodes=tuple(dict.fromkeys(node.name for node in (*nodes_of(request.map), *request.spawned_on))),
            rank_nodes=tuple(node.name for node in request.map) if by_rank else (),
            timeout=order.timeout,
            program=plan.program,
            placed=plan.placed,
            site_map=site_runs([request.sites[node.host] for node in request.map]) if request.sites else "",
            deterministic=order.deterministic,
        )
        return self.begin(job, found, launcher_command.plan(request))

    def begin(self, job: Job, cluster: Cluster, plan: launcher_command.LaunchPlan) -> Job:
        """Writes the job's row, starts its holder with `plan`, and watches it. An error leaves nothing."""
        self._starting.add(job.id)
        try:
            nodes = self._store.nodes(cluster.name)
            counted = self._counters.begin(node for node in nodes if node.name in job.nodes)
            self._store.put_job(job)
            self.make_directories()
            holder_start.start(self._directory / job.id, self._head_netns(cluster), plan)
            write_atomically(self._directory / job.id / "counted", counted.encode())
            job = job.model_copy(update={"state": JobState.RUNNING, "started": now()})
            self._store.put_job(job)
            where = f"{job.cluster}, {job.ranks} ranks, {job.mpi}" if job.kind == "mpi" else job.nodes[0]
            text = f"{launcher_command.shortened(job.argv)} on {where}"
            self._store.add_event("job.start", job.id, text, placed=job.placed)
        except BaseException:
            self._undo(job)
            raise
        finally:
            self._starting.discard(job.id)
        self.watch(job.id)
        return job

    def _undo(self, job: Job) -> None:
        """Ends whatever was started of the job. The caller raises the first error, so those of each step are logged;
        what could not be undone the monitor finds by the row."""
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("its launcher", lambda: holder_files.end_holder(self._directory / job.id)),
            ("its leftovers", lambda: self._clean_up(job)),
            ("its row and files", lambda: self._discard(job)),
        )
        for what, step in steps:
            try:
                step()
            except Exception:
                log.exception("job %s did not start: %s cannot be removed", job.id, what)

    def poll(self, id: str) -> Job:
        """The current state of the job. If it has ended, cleans up its nodes and records the end."""
        find_job(self._store, id)
        with self._settling.setdefault(id, threading.Lock()):
            job = find_job(self._store, id)
            if job.state in _ENDED or id in self._starting:
                return job
            directory = self._directory / id
            ended, holder = holder_files.read_exit(directory), holder_files.read_holder(directory)
            if ended is None and holder and holder.alive():
                return job
            # The holder may have ended between the two reads.
            return self._record_end(job, ended or holder_files.read_exit(directory))

    def update(self, id: str, change: Callable[[Job], Job]) -> Job:
        """Changes the row of a running job. WRONG_STATE before it runs and after it."""
        with self._settling.setdefault(id, threading.Lock()):
            job = find_job(self._store, id)
            if job.state is not JobState.RUNNING or id in self._starting:
                raise Refused(Code.WRONG_STATE, f"job {id} is {job.state}", "", f"wherry job show {id}")
            self._store.put_job(job := change(job))
            return job

    def ran(self, job: Job) -> float:
        """Seconds since the job started, whatever happened to the clock meanwhile."""
        holder = holder_files.read_holder(self._directory / job.id)
        if holder is None:  # it is being started, or removed
            return max(0.0, now() - (job.started or job.created))
        return since_boot() - holder.start / os.sysconf("SC_CLK_TCK")

    def cancel(self, id: str, taken_down: str = "", grace: float | None = None) -> Job:
        """Ends the job: with a `grace` its ranks get SIGTERM, and have so many seconds to end. Then its launcher gets
        SIGINT, and SIGKILL 5 s after that. Returns when nothing of it is left.

        A job that ends by itself before any signal keeps its exit code. `taken_down` says by whom its cluster is
        removed.
        """
        job = self.poll(id)
        if job.state in _ENDED:
            return job
        if id in self._starting:
            why = "its launcher is being started"
            raise Refused(Code.WRONG_STATE, f"job {id} cannot be ended yet", why, "try again in a moment")
        directory = self._directory / id
        ending.mark_cancelled(directory, taken_down)
        if grace is not None:
            signals.terminate(directory, grace, partial(self.send_signal, id))
        holder_files.end_holder(directory, signal.SIGINT)
        return self.poll(id)

    def send_signal(self, id: str, number: signal.Signals, seconds: float) -> tuple[int, dict[str, str]]:
        """Sends a signal to the job's ranks. How many got it, and the nodes that did not answer in time, with the
        reason. Refused when the job does not run."""
        job = find_job(self._store, id)
        if job.state is not JobState.RUNNING:
            raise Refused(Code.WRONG_STATE, f"job {id} does not run", f"it is {job.state}", f"wherry job show {id}")
        cluster = find_cluster(self._store, job.cluster)
        nodes = [one for one in self._store.nodes(job.cluster) if one.name in job.nodes or job.kind == "mpi"]
        alive = [one for one in nodes if one.state != NodeState.LOST]
        return signals.send(job, number, self.endpoints(cluster, alive), seconds)

    def moving(self, name: str) -> bool:
        """Whether a node is being moved, by its row."""
        node = self._store.node(name)
        return node is not None and node.state is NodeState.MOVING

    def node_lost(self, id: str, node: Node) -> bool:
        """Ends the job if it has ranks on a lost node. True when the loss was new."""
        return self._losses.node_lost(find_job(self._store, id), node)

    def output(self, id: str, offset: int = 0, limit: int = 1 << 20) -> tuple[list[holder_files.Chunk], int]:
        """Output from `offset` on (0, or as returned by the last call), about `limit` bytes at most."""
        find_job(self._store, id)
        return holder_files.read_output(self._directory / id, offset, limit)

    def input(self, id: str, offset: int, data: bytes, end: bool) -> tuple[int, bool]:
        """Writes `data` to rank 0's standard input, where it begins at `offset`. See `holder_files.write_input`."""
        job = find_job(self._store, id)
        taken = holder_files.write_input(self._directory / id, offset, data, end) if job.state not in _ENDED else None
        if taken is None:
            why = "it was started without input" if job.state not in _ENDED else f"it is {job.state}"
            run = f"exec {job.nodes[0]}" if job.kind == "exec" else f"run {job.cluster} -n {job.ranks}"
            remedy = f"wherry {run} -- {job.argv[0]} < FILE"
            raise Refused(Code.WRONG_STATE, f"job {id} reads no input", why, remedy)
        return taken

    def adopt(self) -> None:
        """Takes over the jobs of an earlier daemon: watches the running ones, records the end of the others, and ends
        those that have lost a node."""
        for job in self._store.jobs():
            if job.state not in _ENDED:
                try:
                    self._adopt(job)
                except Exception:  # the monitor watches it
                    log.exception("job %s has no watching thread", job.id)

    def _adopt(self, job: Job) -> None:
        """A job whose holder has written its process id was started, even if it has ended since."""
        if job.state is JobState.STARTING and holder_files.read_holder(self._directory / job.id):
            self._store.put_job(job.model_copy(update={"state": JobState.RUNNING, "started": now()}))
        self.watch(job.id)
        self._losses.end_if_lost(job.id)

    def remove(self, cluster: str, reason: str) -> None:
        """Cancels the cluster's jobs and removes them with their output. Who asks for them later is told the reason."""
        tell_removed(self._store, cluster, reason)
        for job in self._store.jobs(cluster):
            self.cancel(job.id, reason)
            self._discard(job)

    def prune(self, keep: int = 50) -> None:
        """Removes ended jobs except the newest `keep` of each kind and user. One that cannot be removed keeps no
        other."""
        ended: dict[tuple[str, int], list[Job]] = {}
        for job in self._store.jobs():
            if job.state in _ENDED:
                ended.setdefault((job.kind, job.uid), []).append(job)
        for over in ended.values():
            for job in over[: max(0, len(over) - keep)]:
                try:
                    if not self._late.awaited(job.id):
                        self._discard(job)
                except Exception:
                    log.exception("job %s cannot be removed", job.id)

    def forget(self, id: str) -> Job:
        """Removes a job that has ended, with its output. WRONG_STATE while it runs."""
        job = self.poll(id)
        if job.state not in _ENDED:
            raise Refused(Code.WRONG_STATE, f"job {id} is {job.state}", "", f"wherry job cancel {id}")
        self._discard(job)
        return job

    # Before the start.

    def require_usable(self, name: str) -> Cluster:
        """The cluster. Refused where nothing can run on its nodes."""
        found = find_cluster(self._store, name)
        if self._fabric.driver == "fake":
            why = "its nodes exist in memory only"
            raise Refused(Code.UNSUPPORTED, "the fabric fake runs no jobs", why, "wherry fabric show")
        return found

    def _request(self, cluster: Cluster, plan: JobPlan) -> launcher_command.LaunchRequest:
        order, found = plan.request, plan.mpi
        owner, nodes = order.owner, tuple(self._store.nodes(cluster.name))
        id, whole = new_id("job"), "container" not in cluster.spec.kinds
        crowd = (order.ranks + self._running_ranks()) / len(os.sched_getaffinity(0))
        preloads = preload.chosen(found, order.env, whole, order.uses_mpi_library)
        return launcher_command.LaunchRequest(
            id=id,
            mpi=found,
            programs=plan.programs,
            map=rank_map(nodes, order.ranks, order.layout),
            sites=self._sites(order.deterministic) if order.site_collectives else {},
            deterministic=order.deterministic,
            spawned_on=tuple(node for node in nodes if order.may_spawn_on(node.name)),
            inside=inside.environment(cluster, id, self._store.secret(secret_name(cluster.name)), order.host_memory),
            nodes=nodes,
            owner=owner,
            env=masked(order.env, cluster.spec.without_cpu_features),
            inherited=order.inherited,
            head_address=cluster.head_address,
            subnet=cluster.subnet,
            keys={node.name: self._places.key(node) for node in nodes},
            directory=self._directory / id / "own",
            agent=file_visibility.world_readable(native_program("wherry-rsh"), owner, self._state / "bin"),
            preloads=self._libraries(preloads, owner),
            launcher_preloads=self._libraries(preload.for_launcher(found), owner),
            input=order.input,
            whole=whole,
            crowd=crowd,
            bind_to=order.layout.bind_to,
            timeout=order.timeout,
            launcher_args=order.launcher_args,
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

    # The launch.

    def _stage(self, cluster: Cluster, request: launcher_command.LaunchRequest, check: Callable[[], None]) -> None:
        """Copies the job's files to its virtual machines, which do not see this machine's."""
        targets = staging.targets(request.map)
        if not targets:
            return
        owner = request.owner
        programs = [Path(to_native(one.argv[0])) for one in request.programs]
        files = staging.gather(cluster, programs, owner, request.env, request.ours, check)
        endpoints = dict(self.endpoints(cluster, request.nodes))
        staging.copy(cluster, [(node, endpoints[node.name]) for node in targets], files, owner, request.mpi, check)

    def make_directories(self) -> None:
        """Mode 0711: the owner of a job must reach its `own` directory; the database itself is 0600."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for directory in (self._state, self._directory):
            directory.chmod(0o711)

    def _head_netns(self, cluster: Cluster) -> str:
        return self._fabric.port_netns(self._places.head_port(cluster))

    def endpoints(self, cluster: Cluster, nodes: Sequence[Node]) -> list[tuple[str, AgentEndpoint]]:
        """Where the first processes of these nodes listen, by the nodes' names."""
        netns, key = self._head_netns(cluster), self._places.key
        return [(node.name, AgentEndpoint(netns, node.address, key(node).get_secret_value())) for node in nodes]

    # The end.

    def watch(self, id: str) -> None:
        """Has a thread of its own wait for the job's end, and record it, unless one does. Returns at once."""
        with self._watching:
            if id in self._watched:
                return
            self._watched.add(id)
        try:
            threading.Thread(target=self._await_end, args=(id,), name=f"watch-{id}", daemon=True).start()
        except RuntimeError:  # the kernel refuses a thread: the monitor calls again
            log.exception("job %s has no watching thread", id)
            with self._watching:
                self._watched.discard(id)

    def _await_end(self, id: str) -> None:
        holder = holder_files.read_holder(self._directory / id)
        fd = holder.open() if holder else None
        if fd is not None:
            readable(fd, None)
            os.close(fd)
        try:
            self.poll(id)
        except Refused:
            pass  # removed meanwhile
        finally:  # the monitor has it watched again, whatever failed
            with self._watching:
                self._watched.discard(id)

    def _record_end(self, job: Job, ended: holder_files.Exit | None) -> Job:
        directory, ends = self._directory / job.id, self._counters.ends(job)
        problems = self._clean_up(job, [end.node.name for end in ends if not end.alive])
        try:
            if problems:
                self._late.note(job.id, problems)
        except OSError:  # the disk is full, perhaps: the end is recorded all the same
            log.exception("job %s: the nodes that keep something of it cannot be noted", job.id)
        change = ending.change_of(job, directory, ended, ends, problems)
        job = job.model_copy(update={**change, "ended": ended.ended if ended else now()})
        try:
            remove_tree(directory / "own")  # first: it holds the nodes' keys, and nobody looks at an ended job again
        except Failed:  # it is tried again when the job is removed
            log.exception("job %s: its files cannot be removed", job.id)
        self._store.put_job(job)
        text = str(job.state) if job.exit_code is None else f"{job.state}, exit code {job.exit_code}"
        data = {"lost": ended.lost if ended else 0}
        if job.failure:
            text, data = f"{text}: {job.reason}", {**data, **job.failure.model_dump(exclude_none=True)}
        self._store.add_event("job.end", job.id, text, **data)
        return job

    def sweep(self) -> None:
        """Begins to kill what ended jobs have left on nodes that did not answer then. Returns at once."""
        self._late.once()

    def _sweep(self, id: str, nodes: Collection[str]) -> dict[str, str]:
        job = find_job(self._store, id)
        others = [node.name for node in self._store.nodes(job.cluster) if node.name not in nodes]
        return self._clean_up(job, others)

    def _swept(self, id: str) -> None:
        self._store.add_event("job.swept", id, "its leftover processes are gone")

    def _clean_up(self, job: Job, left_out: Collection[str] = ()) -> dict[str, str]:
        """Kills the job's leftovers on its nodes, except those left out, and beside its launcher; why it could not, by
        node."""
        owner = Owner(uid=job.uid, gid=job.gid, home="/", cwd="/")
        cleanup.end_leftovers_at_head(self._directory / job.id / "own" / "job", owner)
        cluster = self._store.cluster(job.cluster)
        if cluster is None:
            return {}
        rows = self._store.nodes(job.cluster)
        nodes = tuple(node for node in rows if node.state != NodeState.LOST and node.name not in left_out)
        if job.kind == "exec":
            nodes = tuple(node for node in nodes if node.name in job.nodes)
        return cleanup.end_leftovers_on_nodes(job.id, owner, self.endpoints(cluster, nodes), _CLEANUP_SECONDS)

    def _discard(self, job: Job) -> None:
        remove_tree(self._directory / job.id)  # first: a directory without a row would be found by nobody
        self._store.drop_job(job.id)
        self._settling.pop(job.id, None)
