"""Raw samples as JSON lines: a header, then one line per sample, appended as it is taken, failed ones marked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Samples:
    """The samples of one benchmark in one file. A line that was written is never changed."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Begins the file; `header` says what was asked and on what machine."""
        self.path, self.header = path, dict(header)
        self._rows: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"header": self.header}) + "\n")

    def add(self, **fields: Any) -> None:
        """Appends one sample. `ok` (default true) says whether it counts."""
        row = {"ok": True, **fields}
        self._rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def good(self, **where: Any) -> Iterator[dict[str, Any]]:
        """Samples that count and have these fields."""
        for row in self._rows:
            if row["ok"] and all(row.get(key) == value for key, value in where.items()):
                yield row

    def values(self, field: str, **where: Any) -> list[float]:
        """One field of the samples that count; those without it are left out."""
        return [float(row[field]) for row in self.good(**where) if row.get(field) is not None]

    def failed(self) -> int:
        """How many samples do not count."""
        return sum(not row["ok"] for row in self._rows)
