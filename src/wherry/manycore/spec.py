"""What a tiles file says.

    kind: tiles
    version: 1
    tiles: 4   # at most 16
    cores: 3   # of each tile, the master core included; at most 16
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from wherry.base.errors import Code, Refused
from wherry.model.spec import Spec, parse_yaml


class TilesSpec(Spec):
    """The tiles of one host. More cores than CPUs are possible and cost the host's scheduling."""

    kind: Literal["tiles"] = "tiles"
    version: Literal[1] = 1
    tiles: int = Field(default=4, ge=1, le=16)
    cores: int = Field(default=3, ge=2, le=16)


def read_tiles(path: Path) -> TilesSpec:
    """The file, checked."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        code = Code.NOT_FOUND if isinstance(error, FileNotFoundError) else Code.INVALID_FILE
        raise Refused(code, f"cannot read {path}", str(error), "see examples/tiles.yaml") from None
    return parse_yaml(TilesSpec, text, str(path))
