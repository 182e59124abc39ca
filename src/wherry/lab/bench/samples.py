"""Raw samples: one JSON line per run, appended as the run ends, failed runs included and marked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Samples:
    """The samples of one study in one file. What was appended stays, whatever comes later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rows: list[dict[str, Any]] = []
        path.write_text("")

    def add(self, **fields: Any) -> None:
        """Appends one run. `ok` (default true) says whether it counts."""
        row = {"ok": True, **fields}
        self._rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def good(self, **where: Any) -> Iterator[dict[str, Any]]:
        """Runs that count and have these fields."""
        for row in self._rows:
            if row["ok"] and all(row.get(key) == value for key, value in where.items()):
                yield row

    def values(self, field: str, **where: Any) -> list[float]:
        """One field of the runs that count; runs without it are left out."""
        return [float(row[field]) for row in self.good(**where) if row.get(field) is not None]

    def failed(self) -> int:
        """How many runs do not count."""
        return sum(not row["ok"] for row in self._rows)
