"""Wherry runs unmodified MPI programs on virtual clusters and moves their nodes while they run.

`from wherry import Client` asks a daemon from Python, by its Unix socket or over the network (docs/python.md); a
refusal is a `WherryError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.base.version import __version__

if TYPE_CHECKING:
    from wherry.base.errors import WherryError
    from wherry.client import Client

__all__ = ["Client", "WherryError", "__version__"]


def __getattr__(name: str) -> object:
    """PEP 562: `import wherry` alone imports only the version."""
    if name == "Client":
        from wherry.client import Client

        return Client
    if name == "WherryError":
        from wherry.base.errors import WherryError

        return WherryError
    raise AttributeError(f"module 'wherry' has no attribute {name!r}")
