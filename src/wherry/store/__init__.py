"""Tables and migrations."""

from wherry.store.store import Store

__all__ = ["Store"]
