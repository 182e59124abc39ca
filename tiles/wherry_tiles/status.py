"""Tiles in `wherry status` (wherry.cli.status.Shown)."""

from __future__ import annotations

from wherry.client import Reader, Row


def read(reader: Reader) -> Row:
    """`tiles`, `processes` and `hosts`. NOT_FOUND when none are up."""
    return reader.get("/v1/tiles", "tile")


def line(tiles: Row) -> str:
    """How many there are, and where."""
    count, running = len(tiles["tiles"]), sum(p["state"] == "running" for p in tiles["processes"])
    where = f" on {', '.join(tiles['hosts'])}" if tiles["hosts"] else ""
    return f"{count} tiles are up{where}; {running} processes run there (wherry tile ps)."
