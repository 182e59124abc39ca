"""Claims: the objects that an operation works on. They are the only exclusion between operations.

A claim is a name. Operations that share a claim run at the same time; an exclusive claim conflicts with every other
claim of the same name. From the whole to the part:

    fabric            shared by operations that use hosts; exclusive to make, change or remove the fabric, also while
                      the first `up` makes the embedded one
    host H            exclusive to drain or restore a host
    machine URI       exclusive to put the files of a host by SSH there, or to remove them
    link A--B         exclusive to change a link between sites
    cluster C         shared by runs, moves and balancing; exclusive to make, change or remove the cluster,
                      and for a run until it has bound the files that nodes lack
    job J             shared to cancel the job; exclusive to remove it with its cluster
    node N            exclusive to move the node, and to finish, roll back or clean up after an earlier move of it
    balance, images   exclusive: one such operation at a time

A component has claims of its own beside these.

A claim is not waited for: an operation that conflicts with a running one is refused, and the refusal names that one.
The exception is a run, which waits for other programs to be started on its cluster and shares the fabric alone
meanwhile. So claims cannot deadlock. Rows that record work under way (`moving`, an unfinished move) follow from claims
and exclude nothing: by them the next daemon finds work that this one left unfinished.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FABRIC, BALANCE, IMAGES = "fabric", "balance", "images"


@dataclass(frozen=True)
class Claims:
    """The claims of one operation."""

    shared: frozenset[str] = frozenset()
    exclusive: frozenset[str] = frozenset()

    @classmethod
    def of(cls, shared: Collection[str] = (), exclusive: Collection[str] = ()) -> Claims:
        """From any collections of names."""
        return cls(frozenset(shared), frozenset(exclusive))

    def __or__(self, other: Claims) -> Claims:
        return Claims(self.shared | other.shared, self.exclusive | other.exclusive)

    def __contains__(self, name: str) -> bool:
        return name in self.shared or name in self.exclusive

    def conflict(self, other: Claims) -> bool:
        """True when operations with these claims must not run at the same time."""
        return bool(self.exclusive & (other.exclusive | other.shared) or self.shared & other.exclusive)


def cluster_claim(name: str) -> str:
    """The claim on a cluster."""
    return f"cluster {name}"


def node_claim(name: str) -> str:
    """The claim on a node."""
    return f"node {name}"


def job_claim(id: str) -> str:
    """The claim on a job."""
    return f"job {id}"


def host_claim(name: str) -> str:
    """The claim on a host."""
    return f"host {name}"


def link_claim(name: str) -> str:
    """The claim on a link between two sites."""
    return f"link {name}"
