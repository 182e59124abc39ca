"""Common parts of the drivers for virtual machines: console logs, and waiting for the agent after a boot."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.base.progress import Check
from wherry.model.move_check import Hindrance
from wherry.model.spec.cluster import Flavor
from wherry.node.console_tail import console_tail
from wherry.node.protocol import Placement
from wherry.node.vm.agent_liveness import answers
from wherry.node.vm.console import both, remove


class VmDriverBase(ABC):
    """Virtual machines of one instance, each with a console log in the instance's state directory."""

    instance: Instance
    probe_timeout, probe_pause = 1.0, 0.05
    """Seconds that one attempt to reach an agent may take, and between two attempts."""

    @abstractmethod
    def alive(self, placement: Placement) -> bool:
        """As in NodeDriver."""

    def files_obstacle(self, flavor: Flavor) -> str:
        """As in NodeDriver. Hosts of their own are on networks to which nobody has exported anything."""
        return "machines on hosts of their own have copies of files"

    def bind(self, placement: Placement, directory: str) -> None:
        """As in NodeDriver."""
        what, why = f"{directory} cannot be bound into {placement.node.name}", "virtual machines have copies of files"
        raise Refused(Code.UNSUPPORTED, what, why, "wherry run copies a job's program; others go under needs")

    def shows(self, placement: Placement, directory: str) -> bool:
        """As in NodeDriver: a job's files of a mount are copied like everything else."""
        return True

    def unbind(self, placement: Placement, directory: str) -> None:
        """As in NodeDriver: there is nothing to undo."""
        return

    def require_movable(self, placement: Placement) -> None:
        """As in NodeDriver: a machine moves with whatever its programs hold."""
        return

    def inspect(self, placement: Placement) -> tuple[Hindrance, ...]:
        """As in NodeDriver: nothing."""
        return ()

    def console(self, node: str) -> Path:
        """The console log of the node's current run, on whichever hosts it ran."""
        return self.instance.state / "consoles" / f"{node}.log"

    def console_files(self, node: str) -> list[Path] | None:
        """As in NodeDriver."""
        return both(self.console(node))

    def forget(self, node: str) -> None:
        """As in NodeDriver."""
        remove(self.console(node))

    def console_tail(self, placement: Placement) -> str:
        """The end of the node's console, for an error text."""
        return console_tail(self.console(placement.node.name)) or "its console is empty"

    def await_agent(self, placement: Placement, seconds: float, check: Check, doubt: str = "") -> None:
        """Returns when the node's agent answers. Failed when the machine ended, or did not answer within `seconds`;
        `doubt` names another possible cause. `check` raises to end the wait."""
        deadline, node = time.monotonic() + seconds, placement.node.name
        while not answers(placement, self.probe_timeout):
            check()
            if not self.alive(placement):
                what = f"node {node} on host {placement.host} ended while it booted"
                raise Failed(Code.FAILED, what, self.console_tail(placement), f"wherry logs --node {node}")
            if time.monotonic() > deadline:
                what = f"node {node} on host {placement.host} does not answer"
                why = f"waited {seconds:.0f} s{doubt}; the end of {self.console(node)}: {self.console_tail(placement)}"
                raise Failed(Code.TIMED_OUT, what, why, f"wherry logs --node {node}")
            time.sleep(self.probe_pause)
