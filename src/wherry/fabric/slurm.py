"""Slurm, by its own programs: squeue, sbatch, scancel, scontrol.

Invariants: programs are run without a shell, each with one word for an option and its value; variables of Slurm in the
environment, perhaps of the job in which the daemon was started, change nothing. Jobs that were asked for are found by
their name and comment, which are made of the instance and a secret of it, among those of this user alone.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.fabric.run_program import output_of
from wherry.fabric.slurm_text import (
    JOB_FORMAT,
    SlurmJob,
    SlurmNode,
    Unreadable,
    parse_jobs,
    parse_names,
    parse_nodes,
    parse_submitted,
)
from wherry.model.spec.slurm import SlurmSpec

Read = TypeVar("Read")
_INSTALL = "apt-get install slurm-client; then the same command again"
_HOLDER = "#!/bin/sh\nexec sleep infinity\n"
"""The job: it holds the nodes, and does nothing."""
_VARIABLES = re.compile(r"(SLURM|SBATCH|SQUEUE|SCANCEL|SALLOC|SRUN|SINFO|SCONTROL)_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
_SECONDS = 60.0
"""Programs of Slurm try for about ten seconds to reach its daemon."""
_GONE = "Invalid job id specified"
_HOSTLIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*", re.ASCII)


class Slurm:
    """The cluster to which this machine's slurm.conf belongs."""

    def __init__(self, instance: Instance, identity: str) -> None:
        self.name = f"wherry-{instance.name}"
        self.comment = f"wherry:{hashlib.sha256(f'slurm {identity}'.encode()).hexdigest()[:32]}"
        """Other users can read it, so it is not the identity itself."""

    def own(self) -> list[SlurmJob]:
        """The allocations that this instance asked for, which wait, run, or are ending. Failed."""
        words = ("squeue", "--me", "--noheader", f"--name={self.name}", f"--format={JOB_FORMAT}")
        found = self._read(words, "Slurm's jobs cannot be listed", parse_jobs)
        return [job for job in found if job.comment == self.comment]

    def job(self, id: int) -> SlurmJob | None:
        """A job of anybody; None when it has ended. Failed."""
        words = ("squeue", "--noheader", f"--jobs={id}", f"--format={JOB_FORMAT}")
        try:
            found = self._read(words, f"Slurm's job {id} cannot be looked at", parse_jobs)
        except Failed as error:
            if _GONE in error.why:
                return None
            raise
        return next((job for job in found if job.id == id), None)

    def ask(self, spec: SlurmSpec, never: Sequence[str] = ()) -> int:
        """Asks for an allocation of whole nodes, with none of `never`. Returns its number. Failed with Slurm's
        message."""
        assert spec.nodes and spec.time
        words = [
            "sbatch", "--parsable", f"--job-name={self.name}", f"--comment={self.comment}", f"--nodes={spec.nodes}",
            "--ntasks-per-node=1", "--exclusive", f"--time={math.ceil(spec.time / 60)}", "--no-kill", "--no-requeue",
            "--output=/dev/null", "--error=/dev/null", "--chdir=/", "--export=PATH",
        ]  # fmt: skip
        words += [f"--partition={spec.partition}"] if spec.partition else []
        words += [f"--account={spec.account}"] if spec.account else []
        words += [f"--exclude={','.join(never)}"] if never else []
        what = f"Slurm gives no allocation of {spec.nodes} nodes"
        return self._read(words, what, parse_submitted, given=_HOLDER)

    def cancel(self, id: int) -> None:
        """Ends a job, or takes it back while it waits. Failed."""
        self._run(("scancel", str(id)), f"Slurm's job {id} cannot be cancelled")

    def names(self, nodes: str) -> list[str]:
        """The names of `h[1-3]`, which Slurm printed. Failed."""
        if not nodes:
            return []
        if not _HOSTLIST.fullmatch(nodes):
            raise Failed(Code.FAILED, "Slurm names nodes that cannot be", repr(nodes[:80]), "squeue")
        return self._read(("scontrol", "show", "hostnames", nodes), "names of nodes cannot be read", parse_names)

    def nodes(self, names: Sequence[str] = ()) -> list[SlurmNode]:
        """The nodes of these names, which are of Slurm's own; without any all nodes of the cluster. Failed."""
        words = ("scontrol", "--oneliner", "show", "node", *([",".join(names)] if names else ()))
        return self._read(words, "Slurm's nodes cannot be listed", parse_nodes)

    def _read(
        self, words: tuple[str, ...] | list[str], what: str, parse: Callable[[str], Read], given: str | None = None
    ) -> Read:
        try:
            return parse(self._run(words, what, given))
        except Unreadable as error:
            raise Failed(Code.FAILED, what, str(error), f"{words[0]} --version") from None

    def _run(self, words: tuple[str, ...] | list[str], what: str, given: str | None = None) -> str:
        return output_of(words, what, _INSTALL, given, _SECONDS, environment())


def environment() -> dict[str, str]:
    """The environment of Slurm's programs: without the variables by which they take options."""
    own = {name: value for name, value in os.environ.items() if name in _KEPT or not _VARIABLES.match(name)}
    return {**own, "LC_ALL": "C.UTF-8"}
