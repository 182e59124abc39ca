"""Names and UUIDs of domains on hosts that several instances share.

Invariant: UUIDs are derived (UUIDv5) from names, so a restarted daemon finds its domains.
"""

from __future__ import annotations

import uuid

from wherry.base.paths import Instance

_NAMESPACE = uuid.UUID("5b6f8f0e-5d0d-4c86-9a8f-6f1f5f2a7c11")
"""Namespace of the UUIDs of hosts and domains."""


def id_of(*words: str) -> str:
    """The UUID of these names."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(words)))


def domain_id(instance: Instance, node: str) -> str:
    """The UUID that a node's domain has on every host."""
    return id_of(instance.name, "node", node)


def domain_name(instance: Instance, node: str) -> str:
    """The name of a node's domain, unique on a host with domains of other instances and users."""
    return f"{instance.prefix}-{node}"
