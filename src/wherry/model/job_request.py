"""Requests to run programs: of MPI on a cluster, or any on a node.

Words and variables are text that stands for bytes (`wherry.base.bytes_text`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wherry.model.inherited import Inherited
from wherry.model.owner import Owner
from wherry.model.records import Record
from wherry.model.spec.base import ShortText

RankCount = Annotated[int, Field(ge=1, le=65536)]
SignalName = Literal[
    "HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP", "TSTP", "URG", "XCPU", "XFSZ",
    "WINCH", "IO", "PWR",
]  # fmt: skip
"""Signals that a job's ranks can be sent."""
Words = Annotated[tuple[str, ...], Field(min_length=1, max_length=65536)]


MapBy = Annotated[str, Field(pattern=r"^(slot|node|ppr:[1-9]\d{0,3}:node)$")]
RankBy = Literal["slot", "node"]
BindTo = Literal["none", "hwthread", "core", "l1cache", "l2cache", "l3cache", "socket", "numa"]


class Program(Record):
    """One of the programs of a job (MPMD): its command line, and how many ranks run it."""

    argv: Words
    ranks: RankCount


class Layout(Record):
    """Where ranks run, with mpirun's options; see `wherry.job.rank_map`.

    `hosts` are nodes in the order in which they get ranks, `rankfile` has the node of each rank. `bind_to` is the
    object to which the launcher binds a rank, within its node.
    """

    map_by: MapBy | None = None
    rank_by: RankBy | None = None
    hosts: Annotated[tuple[ShortText, ...], Field(max_length=4096)] = ()
    rankfile: Annotated[tuple[ShortText, ...], Field(max_length=65536)] = ()
    bind_to: BindTo = "none"


class JobRequest(Record):
    """A program to run as `ranks` ranks on a cluster, as `owner`, with the environment `env` and `inherited`
    properties.

    `mpi` is openmpi, mpich or a launcher's path; None means the library that the program is linked against. With
    `input`, rank 0 reads the input that is sent to the job. `expected` is the estimated duration in seconds, `timeout`
    ends the job after so many. Several `programs` make up the `ranks` together; `argv` is then the user's command line.
    When it is `measured`, a profile of the program is kept, and its ranks are placed by the last one.
    When it is `plain`, its ranks have nothing of Wherry inside MPI; else they count their calls of MPI, where others
    can read it while they run. With `site_collectives` collectives cross a link between sites once. When it is
    `deterministic`, reductions of floating point have the same bits wherever its ranks are. With `place_spawned` the
    daemon chooses the nodes of spawned processes. With `host_memory` ranks of containers at one host pass messages of
    some size by its memory.
    """

    cluster: str
    argv: tuple[str, ...]
    ranks: int
    owner: Owner
    env: dict[str, str]
    inherited: Inherited = Inherited()
    mpi: str | None = None
    input: bool = False
    expected: float | None = None
    programs: tuple[Program, ...] = ()
    layout: Layout = Layout()
    timeout: float | None = None
    launcher_args: tuple[str, ...] = ()
    measured: bool = False
    plain: bool = False
    site_collectives: bool = False
    deterministic: bool = False
    place_spawned: bool = False
    host_memory: bool = False

    @property
    def inside_mpi(self) -> tuple[str, ...]:
        """The options that need Wherry inside MPI."""
        asked = {
            "--site-collectives": self.site_collectives,
            "--place-spawned": self.place_spawned,
            "--host-memory": self.host_memory,
        }
        return tuple(option for option, wanted in asked.items() if wanted)

    @property
    def command_lines(self) -> tuple[tuple[str, ...], ...]:
        """That of each program."""
        return tuple(program.argv for program in self.programs) or (self.argv,)

    def may_spawn_on(self, node: str) -> bool:
        """Whether the daemon may name a node of the cluster for processes that the program spawns."""
        return self.place_spawned and (not self.layout.hosts or node in self.layout.hosts)


class Terminal(Record):
    """The size of a terminal, in characters."""

    rows: Annotated[int, Field(ge=1, le=65535)]
    columns: Annotated[int, Field(ge=1, le=65535)]


class ExecRequest(Record):
    """A program to run on one node, as `owner`, with the environment `env` and `inherited` properties.

    It runs in the owner's `cwd`; unless that was `asked` for, in `/` where the node does not see it. With `input` it
    reads the input that is sent to its job, and with a `terminal` it has one, whose input is in frames
    (native/terminal/frames.h). `ours` is a program of Wherry's that runs with `argv` as its arguments.
    """

    node: str
    argv: tuple[str, ...]
    owner: Owner
    env: dict[str, str]
    inherited: Inherited = Inherited()
    asked: bool = False
    input: bool = False
    terminal: Terminal | None = None
    ours: Literal["", "wherry-connect"] = ""
