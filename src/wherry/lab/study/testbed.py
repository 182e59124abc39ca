"""Runs programs for a study: natively on this machine, or on clusters of the study's instance. Invariants: nothing
polls while a program is measured (one long request waits for a job's end); every program and every operation of the
service has a time limit, and Ctrl-C ends the current run; programs are ended when their run ends, and clusters are
removed by `close`. Programs run as root natively and on clusters, so that flood pings and moves are permitted and both
are alike. Each command is recorded with its environment variables.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import native_program
from wherry.base.remedies import packages
from wherry.base.units import format_size
from wherry.client import Client, Row, identity
from wherry.client.client import Chunk
from wherry.lab import native_mpirun
from wherry.lab.study.commands import MAX_OUTPUT, end_session, output_text, record_command
from wherry.lab.study.levels import RunFailed
from wherry.model.owner import Owner
from wherry.model.records import Job, JobState, Move
from wherry.model.spec.fabric import DirectionSpec, LinkSpec

FABRIC: Mapping[str, Any] = {
    "kind": "fabric",
    "version": 1,
    "name": "study",
    "sites": [{"name": "a"}, {"name": "b"}],
    # More cores than the machine has, so that programs are limited by the quotas of nodes and never by that of a host.
    "hosts": [{"name": f"{s}{n}", "site": s, "cores": 16, "memory": "16GiB"} for s in "ab" for n in (1, 2)],
    "links": [{"between": ["a", "b"]}],
}
_TIME_LIMIT = 1800.0
"""Time limit in seconds for a program, and for an operation of the service, e.g. booting emulated VMs."""
_CANCEL_LIMIT = 120.0
"""Time limit in seconds for cancelling a job."""


@dataclass(frozen=True)
class ProgramResult:
    """Exit code and output of an ended program."""

    exit_code: int | None
    stdout: str
    stderr: str

    def require_success(self) -> str:
        """Returns its standard output. Raises RunFailed if its exit code is not 0."""
        if self.exit_code != 0:
            await_output = [line for line in (self.stderr or self.stdout).splitlines() if line.strip(" -")]
            raise RunFailed(f"exit code {self.exit_code}: {' '.join(await_output[:3])[:300]}")
        return self.stdout


@dataclass(frozen=True)
class ClusterShape:
    """Specification of a study's cluster: name, number and size of nodes, hosts. With a `nic` the nodes are VMs with
    that network adapter, which get the files `needs`.
    """

    name: str
    nodes: int
    hosts: tuple[str, ...]
    cpus: float = 1.0
    memory: str = "512MiB"
    spread: str = "host"
    nic: str = ""
    needs: tuple[str, ...] = ()
    checksum_offload: bool = True
    queues: int = 1
    vhost: bool | None = None

    def spec(self) -> dict[str, Any]:
        """The cluster file."""
        return {
            "kind": "vm" if self.nic else "container",
            "version": 1,
            "name": self.name,
            "nodes": self.nodes,
            "cpus": self.cpus,
            "memory": self.memory,
            "hosts": list(self.hosts),
            "placement": self._placement(),
            **({"nic": self._nic(), "needs": list(self.needs)} if self.nic else {}),
        }

    def _placement(self) -> dict[str, Any]:
        """`host` counts the nodes of all clusters, so the own ones of a cluster are spread by a limit. None otherwise:
        it would hold for the balancer too."""
        if self.spread != "host" or not self.hosts:
            return {"spread": self.spread}
        return {"spread": self.spread, "max_per_host": math.ceil(self.nodes / len(self.hosts))}

    def _nic(self) -> dict[str, Any]:
        nic: dict[str, Any] = {"model": self.nic}
        if not self.checksum_offload:
            nic["checksum_offload"] = False
        if self.queues > 1:
            nic["queues"] = self.queues
        if self.vhost is not None:
            nic["vhost"] = self.vhost
        return nic


_PRIVATE_DIRECTORIES = ("/tmp", "/run", "/dev")  # noqa: S108 - directories that are private to a node


class Testbed:
    """Runs programs for a study. `out` is the directory that jobs may write to."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._client: Client | None = None
        self._stack = ExitStack()
        self._clusters: dict[str, ClusterShape] = {}
        self._unchecked = set[str]()
        self._fabric, self._fabric_chosen = FABRIC, False
        self._fabric_texts: dict[str, None] = {}

    @property
    def client(self) -> Client:
        """The client, connected at first use."""
        return self._client or self._connect()

    def _connect(self) -> Client:
        self._client = self._stack.enter_context(Client())
        self._make_fabric(self._client)
        return self._client

    def fabric(self) -> list[str]:
        """Texts for the report: fabrics that were used, with every setting of their links."""
        return list(self._fabric_texts)

    def _note_fabric(self, client: Client) -> None:
        fabric = client.fabric()["fabric"]
        hosts = ", ".join(f"{host['name']} at {host['site']}" for host in fabric["hosts"])
        for text in (
            f"{fabric['name']} ({fabric['driver']}): hosts {hosts}",
            *map(_link_text, fabric["links"]),
        ):
            self._fabric_texts[text] = None

    def _await_operation(self, operation: Row) -> Row:
        """Waits for an operation. After Ctrl-C the run ends even if the operation succeeded."""
        done = self.client.wait(operation.id, seconds=_TIME_LIMIT)
        self._raise_if_interrupted()
        return done

    def _raise_if_interrupted(self) -> None:
        if self.client.interrupted:
            raise KeyboardInterrupt

    def use_fabric(self, fabric: Mapping[str, Any]) -> None:
        """Makes or changes the study's fabric; while clusters exist on it only link parameters may change."""
        if self._fabric_chosen and fabric == self._fabric:
            return
        self._fabric, self._fabric_chosen = fabric, True
        if self._client is None:
            self._connect()
        else:
            self._make_fabric(self._client)

    def _make_fabric(self, client: Client) -> None:
        """Makes the chosen fabric; if none was chosen, the default one unless the instance has a fabric already."""
        if self._fabric_chosen or not _fabric_is_up(client):
            self._await_operation(client.fabric_up(dict(self._fabric), "the study's fabric"))
        self._note_fabric(client)

    def close(self) -> None:
        """Removes the clusters. If one cannot be removed, the others are and the error is raised."""
        if self._client is None:
            return
        client, problem = self._client, None
        try:
            for operation in client.operations(running=True):  # a start of a job that Ctrl-C left
                with suppress(WherryError):
                    client.wait(operation.id, seconds=_TIME_LIMIT)
            for cluster in client.clusters():
                try:
                    if cluster["name"] in self._clusters:
                        client.wait(client.down(cluster["name"], end_jobs=True).id, seconds=_TIME_LIMIT)
                except WherryError as error:
                    problem = error
            if problem:
                raise problem
        finally:
            self._client = None
            self._stack.close()

    def recheck_clusters(self) -> None:
        """Called after a failed run: every cluster is checked and repaired before its next use."""
        self._unchecked = set(self._clusters)

    def require_memory(self, size: int) -> None:
        """Raises RunFailed if less than `size` bytes of memory are available."""
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
                if available < size:
                    raise RunFailed(f"it needs {format_size(size)} of memory, {format_size(available)} are available")

    def ensure_cluster(self, cluster: ClusterShape) -> None:
        """Makes or repairs the cluster; a known good one is left alone."""
        if self._clusters.get(cluster.name) == cluster and cluster.name not in self._unchecked:
            return
        self._clusters[cluster.name] = cluster
        self._unchecked.add(cluster.name)
        self._await_operation(
            self.client.up(cluster.spec(), "the study", identity.process_owner(self._out))
        )  # checks each node
        self._end_jobs(cluster)
        self._unchecked.remove(cluster.name)

    def leave_machines_of(self, kept: ClusterShape | None) -> None:
        """Removes the study's other clusters of virtual machines: idle ones take CPU time where they are emulated, and
        hosts have room for some of them only."""
        for name in [shape.name for shape in self._clusters.values() if shape.nic]:
            if kept is None or name != kept.name:
                self.remove_cluster(name)

    def remove_cluster(self, name: str) -> None:
        """Removes a cluster of the study and ends its jobs; a missing one is accepted. Operations under way are
        awaited first: a cluster is not removed while a node of it moves."""
        if name not in self._clusters:
            return
        self._unchecked.add(name)
        self.await_operations()
        if any(cluster["name"] == name for cluster in self.client.clusters()):
            self._await_operation(self.client.down(name, end_jobs=True))
        self._clusters.pop(name)
        self._unchecked.discard(name)

    def remove_clusters(self, names: Iterable[str]) -> None:
        """Removes each of them, also when another one cannot be removed; that error is raised at the end."""
        problem = None
        for name in names:
            try:
                self.remove_cluster(name)
            except WherryError as error:
                problem = error
        if problem:
            raise problem

    def make_room(self, cluster: ClusterShape, most: int) -> None:
        """Removes the study's oldest clusters that share a host with this one, until `most` do with it."""
        others = [shape for shape in self._clusters.values() if shape.name != cluster.name]
        sharing = [shape.name for shape in others if set(shape.hosts) & set(cluster.hosts)]
        self.remove_clusters(sharing[: max(0, len(sharing) + 1 - most)])

    def await_operations(self, kind: str = "") -> None:
        """Returns when no operation of the service runs, or none of this kind, or after the time limit."""
        deadline = time.monotonic() + _TIME_LIMIT
        while running := [one for one in self.client.operations(running=True) if not kind or one.kind == kind]:
            for operation in running:
                with suppress(WherryError):
                    self.client.wait(operation.id, seconds=_TIME_LIMIT)
            self._raise_if_interrupted()
            if time.monotonic() > deadline:
                return

    def _end_jobs(self, cluster: ClusterShape) -> None:
        """Cancels jobs that a killed session left, which would disturb the measurement."""
        for job in self.client.jobs(cluster.name):
            if job.state.under_way:
                RunningJob(self.client, job, self._out).cancel()

    def addresses(self, cluster: ClusterShape) -> list[str]:
        """Addresses of the nodes by index."""
        self.ensure_cluster(cluster)
        return [node.address for node in self.client.nodes(cluster.name)]

    def run_native(
        self,
        argv: Sequence[str],
        ranks: int,
        directory: Path,
        seconds: float,
        transport: str = "tcp",
        mpi: str = "openmpi",
        env: Mapping[str, str] | None = None,
        waits: bool = False,
    ) -> ProgramResult:
        """Runs an MPI program natively on this machine, over loopback TCP or shared memory (`shm`). With `waits` its
        ranks wait as those on container nodes do."""
        words = [native_mpirun.launcher(mpi), *native_mpirun.options(mpi, transport), "-n", str(ranks)]
        words += native_mpirun.waiting_as_on_nodes(mpi) if waits else ()
        return self.run_command(
            [*words, *argv], directory, seconds, {**native_mpirun.environment(mpi, transport), **(env or {})}
        )

    def run_command(
        self, argv: Sequence[str], directory: Path, seconds: float, env: Mapping[str, str] | None = None
    ) -> ProgramResult:
        """Runs a command on this machine without MPI."""
        record_command(directory, argv, env)
        with (directory / "stdout").open("wb") as out, (directory / "stderr").open("wb") as err:
            child = subprocess.Popen(
                list(argv),
                cwd=directory,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = child.wait(seconds)
            finally:
                end_session(child)
        return ProgramResult(code, output_text(directory / "stdout"), output_text(directory / "stderr"))

    def run_on_cluster(
        self,
        cluster: ClusterShape,
        argv: Sequence[str],
        ranks: int,
        directory: Path,
        seconds: float,
        mpi: str | None = None,
        env: Mapping[str, str] | None = None,
        on_output: Callable[[Chunk], None] | None = None,
    ) -> ProgramResult:
        """Runs an MPI program on a cluster and waits for its end. `on_output` is called with each part of its
        output."""
        return self.start_job(cluster, argv, ranks, directory, mpi, env).wait(seconds, on_output)

    def start_job(
        self,
        cluster: ClusterShape,
        argv: Sequence[str],
        ranks: int,
        directory: Path,
        mpi: str | None = None,
        env: Mapping[str, str] | None = None,
        site_collectives: bool = False,
        owner: Owner | None = None,
    ) -> RunningJob:
        """Starts an MPI program on a cluster, in `directory`; its collectives go by sites if that is asked for. It runs
        as `owner`, in a directory of that, or as this process."""
        self.ensure_cluster(cluster)
        argv = [self._path_seen_by_nodes(argv[0]), *argv[1:]]
        chosen = [*(["--mpi", mpi] if mpi else []), *(["--site-collectives"] if site_collectives else [])]
        record_command(directory, ["wherry", "run", cluster.name, "-n", str(ranks), *chosen, "--", *argv], env)
        job = self.client.run(
            cluster.name,
            list(argv),
            ranks,
            mpi,
            {**os.environ, **(env or {})},
            owner=owner or identity.process_owner(directory),
            site_collectives=site_collectives,
        )
        started = RunningJob(self.client, job, directory)
        if self.client.interrupted:
            started.cancel()
        self._raise_if_interrupted()
        return started

    def _path_seen_by_nodes(self, program: str) -> str:
        """The program's path, or that of a copy in `out` if it is in a directory that nodes have private versions
        of."""
        path = Path(program)
        if path.is_relative_to(self._out) or not any(path.is_relative_to(own) for own in _PRIVATE_DIRECTORIES):
            return program
        copy = self._out / "programs" / path.name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy.with_suffix(".new"))
        copy.with_suffix(".new").replace(copy)  # a running program keeps the old file
        return str(copy)

    def move(
        self,
        node: str,
        hosts: tuple[str, str],
        directory: Path,
        max_rounds: int | None = None,
        mode: str | None = None,
        after: float = 0.0,
    ) -> Move:
        """Moves a node, after `after` seconds, to the one of two hosts where no node of its cluster is, else to the one
        where it is not itself; `mode` is for VMs."""
        records = {record.name: record for record in self.client.nodes()}
        taken = {record.host for record in records.values() if record.cluster == records[node].cluster}
        to = next((host for host in hosts if host not in taken), hosts[records[node].host == hosts[0]])
        parameters: dict[str, object] = {"compress": "off", **({"mode": mode} if mode else {})}
        options = [
            *(["--max-rounds", str(max_rounds)] if max_rounds is not None else []),
            *(["--mode", mode] if mode else []),
            *("--compress", "off"),  # memory as it is, as in the papers
        ]
        delay = [["sleep", f"{after:g}"]] if after else []
        for words in (*delay, ["wherry", "move", node, "--to", to, *options]):
            record_command(directory, words, None)
        time.sleep(after)
        operation = self.client.begin_move(node, to, max_rounds, parameters=parameters)
        return self.client.moved(self._await_operation(operation))


class RunningJob:
    """A job of a study. Its time limits count from its start."""

    def __init__(self, client: Client, job: Job, directory: Path) -> None:
        self.client, self.job, self.directory = client, job, directory
        self._started = time.monotonic()
        self.ended: float | None = None

    def wait(self, seconds: float, on_output: Callable[[Chunk], None] | None = None) -> ProgramResult:
        """Waits for its end. After `seconds` the job is cancelled and TimeoutExpired raised. `on_output` is called with
        each part of its output."""
        texts = {"stdout": bytearray(), "stderr": bytearray()}
        try:
            with self._output(seconds) as chunks:
                for stream, moment, data in chunks:
                    if len(texts[stream]) < MAX_OUTPUT:
                        texts[stream] += data
                    if on_output:
                        on_output((stream, moment, data))
        finally:
            for name, text in texts.items():
                (self.directory / name).write_bytes(text)
        return self._result(texts["stdout"].decode(errors="replace"), texts["stderr"].decode(errors="replace"))

    @contextmanager
    def _output(self, seconds: float) -> Iterator[Iterator[Chunk]]:
        """Yields the job's output until its end. Any exception while it is read cancels the job."""
        try:
            yield self.client.output(self.job.id, seconds=self._started + seconds - time.monotonic())
        except BaseException as error:
            self.cancel()
            if isinstance(error, Failed) and error.code == Code.TIMED_OUT:
                raise subprocess.TimeoutExpired(self.job.argv, seconds) from None
            raise

    def _result(self, stdout: str, stderr: str) -> ProgramResult:
        job = self.client.job(self.job.id)
        if job.state not in (JobState.ENDED, JobState.FAILED):
            raise RunFailed(f"the job is {job.state}: {job.reason or 'no reason given'}")
        self.ended = job.ended
        return ProgramResult(job.exit_code, stdout, stderr)

    def await_output(self, text: bytes, seconds: float = _TIME_LIMIT) -> None:
        """Returns when its standard output contains `text`; raises RunFailed if it ends without. Time limit as in
        `wait`."""
        seen = b""
        with self._output(seconds) as chunks:
            for stream, _, data in chunks:
                seen += data if stream == "stdout" else b""
                if text in seen:
                    return
        raise RunFailed(f"the program ended without {text.decode()!r} in its output")

    def has_ended(self) -> bool:
        """True when it is no longer running."""
        return not self.client.job(self.job.id).state.under_way

    def cancel(self) -> None:
        """Cancels the job if it is still running."""
        try:
            self.client.cancel_job(self.job.id, seconds=_CANCEL_LIMIT)
        except WherryError:
            return


def _fabric_is_up(client: Client) -> bool:
    try:
        return bool(client.fabric()["up"])
    except Refused as error:
        if error.code != Code.NOT_FOUND:
            raise
        return False


def _link_text(link: Mapping[str, Any]) -> str:
    """Describes a link of the service's fabric document by its declared parameters."""
    spec = LinkSpec.model_construct(**{**link, "reverse": DirectionSpec.model_construct(**link["reverse"])})
    return f"link {spec.name}: {spec.described()}"


def program(name: str, mpi: str | None = None) -> str:
    """Path of a measuring program, in the version for `mpi` if it uses MPI."""
    return str(native_program(f"wherry-{name}-{mpi}" if mpi else f"wherry-{name}"))


def installed(name: str, package: str) -> str:
    """Path of a program of the distribution. Raises UNSUPPORTED if it is not installed."""
    node_record = shutil.which(name)
    if node_record is None:
        raise Refused(Code.UNSUPPORTED, f"{name} is not installed", f"it is in Debian's {package}", packages(package))
    return node_record
