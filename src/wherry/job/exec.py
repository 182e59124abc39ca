"""Runs one program on one node, as a job of kind `exec`: `wherry exec`.

It is held like any job (`jobs`), so its output and its end outlive the daemon, and its session with the node's agent is
the node's memory and TCP, so it moves with the node. While the node is frozen in a move, the program is, too; a program
that is started then begins when the node runs again.

Invariant: no shell of ours reads the command; a node runs programs of its cluster's user only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.ids import new_id
from wherry.base.paths import Instance, native_program
from wherry.cluster.binds import is_bound
from wherry.cluster.lookup import find_cluster, find_node, is_moving
from wherry.cluster.placements import Placements
from wherry.job import file_visibility, launcher_command, readiness, staging, validation
from wherry.job.jobs import Jobs
from wherry.model.cpu_mask import masked
from wherry.model.job_request import ExecRequest
from wherry.model.kept_words import kept_words
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Job, JobState, Node, NodeState
from wherry.node.as_user import as_user
from wherry.store.store import Store

_MAX_PROGRAMS = 64
"""Programs that a user other than root may have on nodes at once: each has a directory and threads of the daemon."""
_ANYWHERE = "/"
"""The directory of a program whose user's is not on the node."""


class Execs:
    """Programs on nodes of an instance."""

    def __init__(self, store: Store, placements: Placements, instance: Instance, jobs: Jobs) -> None:
        self._store, self._placements, self._jobs = store, placements, jobs
        self._state = instance.state

    def plan(self, request: ExecRequest) -> ExecRequest:
        """The request, with the directory in which the program runs. Refused when the node cannot run it; changes
        nothing."""
        node = find_node(self._store, request.node)
        cluster = find_cluster(self._store, node.cluster)
        if node.state not in (NodeState.RUNNING, NodeState.MOVING):
            raise Refused(
                Code.WRONG_STATE, f"{node.name} does not run", f"it is {node.state}", "wherry up FILE repairs it"
            )
        validation.check_cluster(request, cluster)
        validation.require_words(request.argv, request.env, request.owner.cwd)
        owner = request.owner
        self._require_few(owner)
        cwd = as_user(owner, lambda: _directory(node, cluster, owner, request.asked))
        return request.model_copy(update={"owner": owner.model_copy(update={"cwd": cwd})})

    def _require_few(self, owner: Owner) -> None:
        """Refused when the user has the most programs on nodes already. Root may have any number."""
        running = [job for job in self._store.jobs_under_way() if job.kind == "exec"]
        if owner.uid and sum(job.uid == owner.uid for job in running) >= _MAX_PROGRAMS:
            what, why = f"uid {owner.uid} runs {_MAX_PROGRAMS} programs on nodes", "a user may run no more at once"
            raise Refused(Code.NO_CAPACITY, what, why, "wherry job list")

    def start(
        self, request: ExecRequest, check: Callable[[], None], operation: str = "", stream: int | None = None
    ) -> Job:
        """Starts a planned program. Refused when its user has started too many since; Failed when the node does not
        answer. `stream`: see `LaunchPlan`."""
        node = find_node(self._store, request.node)
        cluster, owner = find_cluster(self._store, node.cluster), request.owner
        endpoints = self._jobs.agents.endpoints(cluster, (node,))
        readiness.require_ready(cluster, endpoints, check, partial(is_moving, self._store))
        argv, ours = request.argv, str(request.ours)
        if request.terminal:
            argv, ours = (str(request.terminal.rows), str(request.terminal.columns), *argv), "wherry-terminal"
        if ours:
            program = self._ours(ours, owner)
            if node.kind == "vm" and not is_bound(str(program), cluster.served):
                staging.send_program(program, node, endpoints[0][1], owner, check)
            argv = (str(program), *argv)
        self._require_few(owner)
        id = new_id("job")
        shown, argv_cut = kept_words((request.ours, *request.argv) if request.ours else request.argv)
        job = Job(
            id=id,
            kind="exec",
            cluster=cluster.name,
            argv=shown,
            argv_cut=argv_cut,
            ranks=1,
            mpi="none",
            uid=owner.uid,
            gid=owner.gid,
            cwd=owner.cwd,
            state=JobState.STARTING,
            created=now(),
            operation=operation,
            nodes=(node.name,),
            rank_nodes=(node.name,),
        )
        key, own = self._placements.key(node), self._jobs.directory(id) / "own"
        env = masked(request.env, cluster.spec.without_cpu_features)
        agent, has_input = self._ours("wherry-rsh", owner), request.input or request.terminal is not None
        plan = launcher_command.plan_exec(id, own, agent, node, key, owner, argv, env, has_input, request.inherited)
        return self._jobs.begin(job, cluster, replace(plan, stream=stream))

    def _ours(self, name: str, owner: Owner) -> Path:
        """A program of Wherry, at a path that nodes see."""
        self._jobs.make_directories()
        return file_visibility.world_readable(native_program(name), owner, self._state / "bin")


def _directory(node: Node, cluster: Cluster, owner: Owner, asked: bool) -> str:
    """The owner's directory, or `/` where the node does not see it. Refused when it was `asked` for in a container. To
    be called with the owner's rights; of a virtual machine its agent checks that."""
    here = Path(owner.cwd)
    if node.kind == "vm":
        return owner.cwd if asked or is_bound(owner.cwd, cluster.served) else _ANYWHERE
    try:
        file_visibility.require_enterable(here, owner)
        file_visibility.require_visible(here, "the working directory", cluster)
    except Refused:
        if asked:
            raise
        return _ANYWHERE
    return owner.cwd
