"""Raw samples as JSON lines: a header, then one line for each sample, appended when it is taken; failed ones
included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self


class Samples:
    """The samples of one benchmark in one file, which is append-only."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Creates the file; `header` has the settings and the environment."""
        self.path, self.header = path, dict(header)
        self._rows: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"header": self.header}) + "\n")

    def add(self, **fields: Any) -> None:
        """Appends one sample. It counts unless `ok` is False."""
        row = {"ok": True, **fields}
        self._rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Those of a file, to which nothing is added."""
        header, *rows = (json.loads(line) for line in path.read_text().splitlines())
        samples = cls.__new__(cls)
        samples.path, samples.header, samples._rows = path, header["header"], rows
        return samples

    def good(self, **where: Any) -> Iterator[dict[str, Any]]:
        """Samples that count and whose fields equal `where`."""
        for row in self._rows:
            if row["ok"] and all(row.get(key) == value for key, value in where.items()):
                yield row

    def values(self, field: str, **where: Any) -> list[float]:
        """One field of the samples that count and have it."""
        return [float(row[field]) for row in self.good(**where) if row.get(field) is not None]

    def bad(self) -> list[dict[str, Any]]:
        """Samples that do not count."""
        return [row for row in self._rows if not row["ok"]]

    def failed(self) -> int:
        """Number of samples that do not count."""
        return len(self.bad())
