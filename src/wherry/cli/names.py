"""Arguments that name something, which a shell completes: the daemon is asked, if one runs; else there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from wherry.client import Reader

Names = list[tuple[str, str]]
"""Each with a few words about it."""


def _completed(names: Callable[[Reader], Names]) -> Parameter:
    """A failure gives no names: cyclopts drops the errors of completers."""

    def complete(_context: object) -> Names:
        with Reader() as reader:
            return names(reader)

    return Parameter(completer=complete)


def _clusters(reader: Reader) -> Names:
    return [(cluster.name, cluster.state) for cluster in reader.clusters()]


def _nodes(reader: Reader) -> Names:
    return [(node.name, f"{node.kind} at {node.host}") for node in reader.nodes()]


def _hosts(reader: Reader) -> Names:
    return [(host.name, f"site {host.site}") for host in reader.hosts()]


def _jobs(reader: Reader) -> Names:
    return [(job.id, f"{job.state}: {' '.join(job.argv)[:40]}") for job in reader.jobs()]


ClusterName = Annotated[str, _completed(_clusters)]
NodeName = Annotated[str, _completed(_nodes)]
HostName = Annotated[str, _completed(_hosts)]
JobId = Annotated[str, _completed(_jobs)]
