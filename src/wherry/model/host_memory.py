"""Where a container node has the memory that its host shares between the nodes of its cluster (`node.container`)."""

from __future__ import annotations

INSIDE = "/run/wherry/host"
"""The memory; a job has the directory of its name there."""
KEPT = "/run/wherry/kept"
"""The directory of its files among the node's own files, under names that begin with the job's."""
