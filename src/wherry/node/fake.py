"""Nodes in memory: for plans without a fabric, and for tests of clusters and of the move's state machine.

It checks the invariant that at most one copy of a node runs, at whatever step a test kills or fails the move; a second
one is a `Bug`. It fails on demand: `fail_at["restore"] = "out of memory"` makes the next `restore` raise, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from wherry.base.errors import Bug, Code, Failed
from wherry.base.progress import Check, Progress, never_raises, quiet
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.move_check import Hindrance
from wherry.model.owner import Owner
from wherry.model.records import Fetched, Round
from wherry.model.spec.cluster import Flavor
from wherry.node.protocol import Measured, NodeDriver, Placement, Transferred, Usage
from wherry.node.vm import migration_job

_PAGE = 4096


class Copy(StrEnum):
    """State of a copy; a removed copy has no entry."""

    PREPARED = "prepared"
    RUNNING = "running"
    FROZEN = "frozen"
    RETIRED = "retired"


class FakeDriver:
    """Placements as a dictionary (node, host) -> Copy. `calls` records all calls by name; `on_call` is called first.

    `switches`: the engine destroys the source's copy by itself at the end of the transfer, as libvirt does. `fetches`:
    with post-copy memory is fetched from the source's copy after the thaw, as containers do.
    """

    def __init__(
        self,
        kind: str = "container",
        rounds: bool = False,
        memory: int = 8 * 2**20,
        switches: bool = False,
        fetches: bool = False,
    ) -> None:
        self.kind = kind
        self.rounds = rounds
        self.memory = memory
        self.switches = switches
        self.fetches = fetches
        self.fetching: set[str] = set()
        """Nodes whose memory is partly at the source."""
        self.arrivals = 0
        """Freezes after which something comes to the node before its port is unplugged."""
        self.cannot = ""
        self.immovable = ""
        self.problem = ""
        """Of every mover."""
        self.engine = ""
        self.written: tuple[tuple[float, int], ...] = ()
        """What movers measure."""
        self.fail_at: dict[str, Exception | str] = {}
        self.on_call: Callable[[str], None] | None = None
        self.calls: list[str] = []
        self.placements: dict[tuple[str, str], Copy] = {}
        self.rates: dict[str, float | None] = {}
        self.left: list[tuple[str, str]] = []
        """The orphans."""
        self.bound: dict[str, list[str]] = {}
        """Directories bound into running nodes, by node."""
        self.unseen: set[str] = set()
        """Directories that were mounted after the nodes were made."""

    def entering(self, name: str) -> None:
        """Records a call, and fails when the test requested it."""
        self.calls.append(name)
        if self.on_call:
            self.on_call(name)
        error = self.fail_at.pop(name, None)
        if error is not None:
            raise error if isinstance(error, Exception) else Failed(Code.FAILED, f"{name} failed", error)

    def copies(self, node: str) -> dict[str, Copy]:
        """The copies of one node by host."""
        return {host: copy for (name, host), copy in list(self.placements.items()) if name == node}

    def put(self, placement: Placement, copy: Copy) -> None:
        """Sets the state of a copy. Bug when a second one would run."""
        others = [h for h, c in self.copies(placement.node.name).items() if c == Copy.RUNNING and h != placement.host]
        if copy == Copy.RUNNING and others:
            raise Bug(f"{placement.node.name} runs at {others[0]} and at {placement.host}")
        if copy == Copy.RUNNING and self.placements.get(_key(placement)) == Copy.RETIRED:
            raise Bug(f"the copy of {placement.node.name} at {placement.host} is retired, and would run again")
        self.placements[_key(placement)] = copy

    def unsupported(self) -> str:
        return self.cannot

    def files_obstacle(self, flavor: Flavor) -> str:
        return "they exist in memory only"

    def check(self, flavor: Flavor, owner: Owner) -> None:
        pass

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        return ""

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        modes = ("auto", "stop", "pre-copy", *(("post-copy", "hybrid") if self.fetches else ()))
        plain = parameters.mode in modes and parameters == MigrationParameters(
            mode=parameters.mode, compress="off" if parameters.compress == "off" else "auto"
        )
        return "" if plain else "nodes in memory have no migration parameters"

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        return self.immovable

    def require_movable(self, placement: Placement) -> None:
        pass

    def inspect(self, placement: Placement) -> tuple[Hindrance, ...]:
        return (Hindrance(text=self.immovable, prevents=True),) if self.immovable else ()

    def start(self, placement: Placement, check: Check = never_raises) -> None:
        self.entering("start")
        check()
        self.put(placement, Copy.RUNNING)

    def stop(self, placement: Placement) -> None:
        self.entering("stop")
        if self.placements.pop(_key(placement), None) == Copy.RETIRED:
            if Copy.RUNNING in self.copies(placement.node.name).values():
                raise Bug(f"{placement.node.name} runs, and its memory at {placement.host} is thrown away")
            self.fetching.discard(placement.node.name)

    def alive(self, placement: Placement) -> bool:
        return self.placements.get(_key(placement)) in (Copy.RUNNING, Copy.FROZEN, Copy.RETIRED)

    def usage(self, placement: Placement) -> Usage:
        if not self.alive(placement):
            raise Failed(
                Code.WRONG_STATE, f"{placement.node.name} does not run at {placement.host}", "", "wherry status"
            )
        return Usage(memory=self.memory, cpu=0.0, processes=1)

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> FakeMover:
        return FakeMover(self, source, destination)

    def rate_obstacle(self, rate: float) -> str:
        return migration_job.rate_obstacle(rate) if self.kind == "vm" else ""

    def console_files(self, node: str) -> None:
        return None

    def forget(self, node: str) -> None:
        pass

    def bind(self, placement: Placement, directory: str) -> None:
        self.entering("bind")
        self.bound.setdefault(placement.node.name, []).append(directory)

    def shows(self, placement: Placement, directory: str) -> bool:
        self.entering("shows")
        return directory not in self.unseen

    def unbind(self, placement: Placement, directory: str) -> None:
        self.entering("unbind")
        self.bound[placement.node.name] = [
            name for name in self.bound.get(placement.node.name, []) if name != directory
        ]

    def orphans(self) -> list[tuple[str, str]]:
        return list(self.left)

    def end_orphan(self, node: str, host: str) -> None:
        self.entering("end_orphan")
        self.left.remove((node, host))

    def sweep(self) -> None:
        self.entering("sweep")
        self.placements.clear()


class FakeMover:
    """Moves an entry of the driver's dictionary. Half of the memory is dirty after each round."""

    def __init__(self, driver: FakeDriver, source: Placement, destination: Placement) -> None:
        self._driver = driver
        self._source = source
        self._destination = destination
        self._dirty = driver.memory
        self.closed = False

    def predict(self, seconds: float = 0.0) -> Measured:
        return Measured(
            bytes=self._driver.memory, overhead=0.02, engine=self._driver.engine, written=self._driver.written
        )

    def limit_rate(self, rate: float | None, spare: float = 0.0) -> None:
        self._driver.rates[self._source.node.name] = rate

    def prepare(self) -> None:
        self._driver.entering("prepare")
        self._expect(self._source, Copy.RUNNING)
        self._driver.put(self._destination, Copy.PREPARED)

    def can_round(self) -> bool:
        return self._driver.rounds

    def round(self, number: int, progress: Progress = quiet) -> Round:
        self._driver.entering("round")
        progress(f"{self._dirty} bytes left")
        self._expect(self._source, Copy.RUNNING)
        sent, self._dirty = self._dirty, max(self._dirty // 2, _PAGE)
        return Round(number=number, bytes=sent, seconds=sent / 1e9, dirty=self._dirty)

    def freeze(self, post_copy: bool = False) -> None:
        self._driver.entering("switch" if post_copy else "freeze")
        self._driver.put(self._source, Copy.FROZEN)
        if post_copy and self._driver.fetches:
            self._driver.fetching.add(self._source.node.name)

    def settled(self) -> bool:
        self._driver.entering("settled")
        self._driver.arrivals, came = max(self._driver.arrivals - 1, 0), self._driver.arrivals > 0
        return not came

    def transfer(self, progress: Progress = quiet) -> Transferred:
        self._driver.entering("transfer")
        progress("")
        self._expect(self._source, Copy.FROZEN)
        if self._driver.switches:
            self._driver.put(self._destination, Copy.FROZEN)
            self._driver.placements.pop(_key(self._source))
        return Transferred(bytes=self._dirty, frozen=0.01)

    def restore(self, progress: Progress = quiet) -> float | None:
        self._driver.entering("restore")
        if not self._driver.switches:
            self._expect(self._source, Copy.FROZEN)
            self._expect(self._destination, Copy.PREPARED)
            self._driver.put(self._destination, Copy.FROZEN)
        return 0.0

    def problem(self) -> str:
        return self._driver.problem

    def switched(self) -> bool:
        self._driver.entering("switched")
        placements = self._driver.placements
        gone = self._driver.switches and _key(self._source) not in placements
        return gone and placements.get(_key(self._destination)) == Copy.FROZEN

    def release(self) -> None:
        self._driver.entering("release")
        if not self._driver.alive(self._destination):
            raise Bug(f"the only copy of {self._source.node.name} would be killed")
        if self._source.node.name in self._driver.fetching:
            self._driver.put(self._source, Copy.RETIRED)
        else:
            self._driver.placements.pop(_key(self._source), None)

    def thaw(self) -> None:
        self._driver.entering("thaw")
        if not self._driver.alive(self._destination):
            raise Bug(f"no copy of {self._source.node.name} to thaw at {self._destination.host}")
        self._driver.put(self._destination, Copy.RUNNING)

    def await_first_run(self) -> float | None:
        return None

    def complete(self) -> Fetched | None:
        self._driver.entering("complete")
        name = self._source.node.name
        if not self._driver.alive(self._destination):
            raise Failed(Code.MOVE_FAILED, f"node {name} ended before it had all its memory")
        if name not in self._driver.fetching:
            return None
        self._expect(self._source, Copy.RETIRED)
        self._driver.fetching.remove(name)
        self._driver.placements.pop(_key(self._source))
        return Fetched(demanded=_PAGE, background=self._dirty - _PAGE, seconds=0.25)

    def roll_back(self) -> None:
        self._driver.entering("roll_back")
        if not self._driver.alive(self._source):
            raise Bug(f"no copy of {self._source.node.name} to go back to at {self._source.host}")
        self._driver.placements.pop(_key(self._destination), None)
        self._driver.fetching.discard(self._source.node.name)
        self._driver.put(self._source, Copy.RUNNING)

    def close(self) -> None:
        self._driver.entering("close")
        self.closed = True

    def _expect(self, placement: Placement, copy: Copy) -> None:
        found = self._driver.placements.get(_key(placement))
        if found != copy:
            raise Failed(Code.FAILED, f"{placement.node.name} at {placement.host} is {found or 'absent'}, not {copy}")


def _key(placement: Placement) -> tuple[str, str]:
    return placement.node.name, placement.host


class PlannedDriver(FakeDriver):
    """Nodes in memory, with the refusals of `real`: for plans before the fabric is made."""

    def __init__(self, real: NodeDriver) -> None:
        super().__init__(real.kind)
        self._real = real

    def unsupported(self) -> str:
        return self._real.unsupported()

    def files_obstacle(self, flavor: Flavor) -> str:
        return self._real.files_obstacle(flavor)

    def check(self, flavor: Flavor, owner: Owner) -> None:
        self._real.check(flavor, owner)
