"""What the drivers of virtual machines share, whoever runs the hypervisor: consoles, and waiting for the agent."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.node.console_tail import console_tail
from wherry.node.protocol import Placement
from wherry.node.vm.agent_probe import answers
from wherry.node.vm.console import both, remove


class VmDriverBase(ABC):
    """Virtual machines of one instance, each with a console in a file of the instance."""

    instance: Instance
    try_for = 1.0
    """Seconds of one try to reach an agent, and from one to the next."""
    pause = 0.05

    @abstractmethod
    def alive(self, place: Placement) -> bool:
        """As in NodeDriver."""

    def console(self, node: str) -> Path:
        """What the node wrote to its console since it was started, wherever it ran meanwhile."""
        return self.instance.state / "consoles" / f"{node}.log"

    def console_files(self, node: str) -> list[Path] | None:
        """As in NodeDriver."""
        return both(self.console(node))

    def forget(self, node: str) -> None:
        """As in NodeDriver."""
        remove(self.console(node))

    def console_tail(self, place: Placement) -> str:
        """The end of the node's console, for an error."""
        return console_tail(self.console(place.node.name)) or "its console is empty"

    def await_agent(self, place: Placement, seconds: float, doubt: str = "") -> None:
        """Until the node's agent answers. Failed when the machine ended, or has not answered within `seconds`: `doubt`
        is what else that may mean."""
        deadline, node = time.monotonic() + seconds, place.node.name
        while not answers(place, self.try_for):
            if not self.alive(place):
                what = f"node {node} on host {place.host} ended while it booted"
                raise Failed(Code.FAILED, what, self.console_tail(place), f"wherry logs --node {node}")
            if time.monotonic() > deadline:
                what = f"node {node} on host {place.host} does not answer"
                why = f"waited {seconds:.0f} s{doubt}; the end of {self.console(node)}: {self.console_tail(place)}"
                raise Failed(Code.TIMED_OUT, what, why, f"wherry logs --node {node}")
            time.sleep(self.pause)
