"""The user's own hosts on which a study is run in place of emulated ones: those of a fabric file with driver `ssh`.

Invariant: hosts that a study cannot use are refused here, before a host is reached and anything is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.model.spec.fabric import FabricSpec, HostSpec
from wherry.model.spec.parse import parse

_WHY_NOT = {
    "netns": "its hosts are emulated, as those are that the study makes without --fabric",
    "libvirt": "its hosts carry virtual machines, and on own hosts a study has container nodes",
    "slurm": "its hosts come and go with allocations, and all runs of a study are on the same hosts",
    "fake": "it has no hosts",
}
"""Driver -> why a study is not run on its hosts."""


@dataclass(frozen=True)
class OwnHosts:
    """`document` is the file's content, as the daemon takes it; `file` its name, for errors."""

    spec: FabricSpec
    document: Mapping[str, Any]
    file: str = "FILE"

    @staticmethod
    def of(document: Mapping[str, Any], file: str = "FILE") -> OwnHosts:
        """Refused (UNSUPPORTED) for a driver whose hosts no study can use."""
        spec = parse(FabricSpec, dict(document), file)
        if spec.driver in _WHY_NOT:
            what = f"no study can be run on the hosts of {file}"
            why = f"it has driver: {spec.driver}; {_WHY_NOT[spec.driver]}"
            raise Refused(Code.UNSUPPORTED, what, why, "write a file with driver: ssh (docs/hosts.md)")
        return OwnHosts(spec, document, file)

    @staticmethod
    def unavailable() -> dict[str, str]:
        """Features that no such hosts have, as `requirements.unavailable_features` has those of this machine."""
        return {"vm": "hosts that SSH reaches carry container nodes alone"}

    def first(self, count: int) -> Sequence[HostSpec]:
        """The first ones of the file."""
        return self.spec.hosts[:count]

    def fabric(self, count: int) -> Mapping[str, Any]:
        """The fabric of the first ones alone, so that nothing is made at others."""
        used = self.first(count)
        names, sites = {host.name for host in used}, {host.site for host in used}
        kept = {"hosts": names, "sites": sites}
        return {
            **self.document,
            **{key: [one for one in self.document[key] if one["name"] in of] for key, of in kept.items()},
        }

    def require(self, study: str, count: int, cores: float, memory: int) -> None:
        """Refused (UNSUPPORTED) where the file has fewer hosts, or one of the first has not so much for nodes."""
        what = f"the study {study} cannot be run on the hosts of {self.file}"
        if (there := len(self.spec.hosts)) < count:
            fewer = f"wherry study run {study} --hosts {there} --fabric {self.file}"
            raise Refused(Code.UNSUPPORTED, what, f"it needs {count} hosts, {self.file} has {there}", fewer)
        for host in self.first(count):
            if host.cores < cores or host.memory < memory:
                need, has = _room(cores, memory), _room(host.cores, host.memory)
                why = f"it needs {need} for nodes at each host, {host.name} has {has}"
                smaller = f"wherry study show {study}   # settings that make it smaller"
                raise Refused(Code.UNSUPPORTED, what, why, smaller)


def _room(cores: float, memory: int) -> str:
    return f"{cores:g} cores and {format_size(memory)}"


def require_runs_there(study: str, why_not: str) -> None:
    """Refused (UNSUPPORTED) for a study that has a reason why it is not run on own hosts."""
    if why_not:
        what = f"the study {study} cannot be run on hosts of your own"
        raise Refused(Code.UNSUPPORTED, what, why_not, f"wherry study run {study}   # on emulated hosts")
