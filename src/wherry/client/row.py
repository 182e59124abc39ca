"""Records without their models, whose import takes as long as a move: a command must not do that beside an
operation."""

from __future__ import annotations

from typing import Any


class Row(dict[str, Any]):
    """A record as JSON, whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None
