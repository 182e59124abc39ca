"""What machines are called where other instances have theirs too.

Invariant: ids follow from names, so whoever was killed finds his again.
"""

from __future__ import annotations

import uuid

from wherry.base.paths import Instance

_NAMESPACE = uuid.UUID("5b6f8f0e-5d0d-4c86-9a8f-6f1f5f2a7c11")
"""Of the ids of hosts and domains."""


def id_of(*words: str) -> str:
    """A UUID that follows from these names."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(words)))


def domain_id(instance: Instance, node: str) -> str:
    """The UUID that a node's domain has on every host."""
    return id_of(instance.name, "node", node)


def domain_name(instance: Instance, node: str) -> str:
    """What a node's domain is called on a host that may have other domains, and other instances'."""
    return f"{instance.prefix}-{node}"
