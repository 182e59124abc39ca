"""A testbed on the user's own hosts: clusters on them, and native ranks of the same programs on them, over their wire.

Invariants: natively rank i is at the host of the cluster's node i; no process of a native run that was cut short
outlives it; when the testbed is closed, files of native runs and the fabric are gone from the hosts.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Refused, WherryError
from wherry.base.paths import native_library
from wherry.client import Client, identity
from wherry.lab import native_mpirun
from wherry.lab.study import host_probe
from wherry.lab.study.host_probe import Probe, run_script, ssh_words
from wherry.lab.study.levels import RunFailed
from wherry.lab.study.testbed import ClusterShape, ProgramResult, RunningJob, Testbed
from wherry.model.owner import Owner
from wherry.model.spec.fabric import HostSpec

_MARK, _FILES = "WHERRY_NATIVE", "/tmp/wherry-native"  # noqa: S108 - of a directory whose name is random
_INSTALLED = (Path("/usr/bin"), Path("/bin"))
"""Programs there are the distribution's, which hosts have themselves."""
_AGENT = """\
#!/bin/sh
# Runs a command of an MPI's launcher at the host with an address: ADDRESS COMMAND...
case $1 in
{cases}
*) echo "no host has the address $1" >&2; exit 1 ;;
esac
"""
_CASE = """{address}) shift; exec {ssh} "export {mark}={own} TMPDIR={files}; mkdir -p -m 700 {files}; $*" ;;"""
_END = f"""
for each in /proc/[0-9]*; do
  if tr '\\0' '\\n' 2>/dev/null <"$each/environ" | grep -qx "{_MARK}=$1"; then kill -9 "${{each#/proc/}}"; fi
done 2>/dev/null
rm -rf -- "{_FILES}-$1"
"""
"""Ends native runs of a testbed, by its number, at a host, and removes their files."""


class OwnHostsTestbed(Testbed):
    """`hosts` are those on which all clusters and native ranks are, in order."""

    def __init__(self, out: Path, hosts: Sequence[HostSpec]) -> None:
        super().__init__(out)
        self._hosts = hosts
        self._probes: Sequence[Probe] = ()
        self._copies = set[Path]()
        self._own = secrets.token_hex(8)
        """Number by which native runs are found at the hosts."""

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
        """Runs an MPI program natively on the hosts in turn, over their wire. The launcher is here, as that of jobs."""
        if transport != "tcp":
            raise RunFailed(f"ranks on several hosts have no {transport}")
        self._probes = self._probes or host_probe.probe(self._hosts)
        libraries = self._libraries()
        addresses = [one.address for one in self._probes][:ranks]
        options = self._mpich if mpi == "mpich" else self._openmpi
        words = [native_mpirun.launcher(mpi), *options(self._agent(directory), addresses, ranks)]
        words += [word for name in env or {} if mpi == "openmpi" for word in ("-x", name)]  # hydra gives all to ranks
        words += ["-n", str(ranks), *(native_mpirun.waiting_as_on_nodes(mpi, libraries) if waits else ())]
        words += [self._path_seen_by_nodes(argv[0]), *argv[1:]]
        variables = {**self._over_wire(mpi), **(env or {})}
        ended = False
        try:
            done = self.run_command(words, directory, seconds, variables)
            ended = done.exit_code == 0
            return done
        finally:
            if not ended:
                self._end_native()

    def _agent(self, directory: Path) -> Path:
        """The `rsh` of the launcher: OpenSSH, by each host's own URI."""
        agent, files = directory / "agent", f"{_FILES}-{self._own}"
        cases = [
            _CASE.format(address=host.wire, ssh=shlex.join(ssh_words(host)), mark=_MARK, own=self._own, files=files)
            for host in self._hosts
        ]
        agent.write_text(_AGENT.format(cases="\n".join(cases)))
        agent.chmod(0o755)
        return agent

    def _openmpi(self, agent: Path, addresses: Sequence[str], ranks: int) -> list[str]:
        most = -(-ranks // len(addresses))
        slots = ",".join(f"{address}:{most}" for address in addresses)
        networks = ",".join(dict.fromkeys(one.network for one in self._probes))
        here = f"{host_probe.own_address(self._probes)}/32"
        return [
            *native_mpirun.options("openmpi", "tcp", networks),
            *("--mca", "plm_rsh_agent", str(agent), "--mca", "plm_rsh_no_tree_spawn", "1"),
            *("--mca", "oob_tcp_if_include", f"{networks},{here}", "--map-by", "node", "--host", slots),
        ]

    def _mpich(self, agent: Path, addresses: Sequence[str], ranks: int) -> list[str]:
        """Hydra begins again at the first host when each has its one rank."""
        slots = ",".join(f"{address}:1" for address in addresses)
        here = host_probe.own_address(self._probes)
        options = ["-launcher", "rsh", "-launcher-exec", str(agent), "-rmk", "user", "-localhost", here]
        return [*options, "-hosts", slots, *native_mpirun.options("mpich", "tcp", directory=self._libraries())]

    def _over_wire(self, mpi: str) -> dict[str, str]:
        return native_mpirun.environment(mpi, "tcp", self._probes[0].facts["interface"])

    def _libraries(self) -> Path:
        """A directory that the hosts see, with the libraries that native ranks load."""
        directory = self._out / "programs"
        for name in native_mpirun.LIBRARIES:
            self._copied(native_library(name))
        return directory

    def _path_seen_by_nodes(self, program: str) -> str:
        """The path of a copy in `out`, which the hosts see, unless the program is the distribution's."""
        path = Path(program)
        return program if path.parent in _INSTALLED or path.is_relative_to(self._out) else str(self._copied(path))

    def _copied(self, file: Path) -> Path:
        """Copied once, so that all runs of a session are of the same files."""
        copy = self._out / "programs" / file.name
        if copy not in self._copies:
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(file, copy.with_suffix(".new"))
            copy.with_suffix(".new").replace(copy)
            self._copies.add(copy)
        return copy

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
        """RunFailed when nodes are at other hosts than native ranks, which would compare two placements."""
        self.ensure_cluster(cluster)
        nodes = [node.host for node in self.client.nodes(cluster.name)]
        if nodes != (wanted := [cluster.hosts[index % len(cluster.hosts)] for index in range(cluster.nodes)]):
            raise RunFailed(f"nodes are at {', '.join(nodes)}, and native ranks at {', '.join(wanted)}")
        owner = owner or identity.process_owner(directory)
        return super().start_job(cluster, argv, ranks, directory, mpi, env, site_collectives, owner)

    def _end_native(self) -> None:
        """Ends all of native runs at the hosts, also where another one is silent."""
        problem: WherryError | None = None
        for host in self._hosts:
            try:
                run_script(host, _END, self._own)
            except WherryError as error:
                problem = error
        if problem:
            raise problem

    def close(self) -> None:
        """Removes all of native runs, the clusters, and the fabric from the hosts."""
        connected = self._client is not None
        try:
            if self._probes:
                self._end_native()
        finally:
            super().close()
            if connected:
                _remove_fabric()


def _remove_fabric() -> None:
    """Removes the fabric, which is not there if it could not be made."""
    with Client() as client:
        try:
            client.wait(client.fabric_down().id)
        except Refused as error:
            if error.code != Code.NOT_FOUND:
                raise
