"""Raw samples as JSON lines: a header for each session, and a line for each sample, appended when its run ends; failed
ones included.

A file is continued by later sessions of the same benchmark with the same settings on the same machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from wherry.base.errors import Code, Refused
from wherry.lab.environment import changed_facts

_ENVIRONMENT = "environment"
"""Key of a header that may differ between sessions, in the facts that change by themselves."""


class Samples:
    """The samples of one benchmark in one file, which is append-only."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Creates the file, also in place of another one; `header` has the settings and the environment."""
        self.path, self.header = path, dict(header)
        self.sessions = 1
        self._rows: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"header": self.header}) + "\n")

    def add(self, **fields: Any) -> None:
        """Appends one sample. It counts unless `ok` is False."""
        self.add_run([fields])

    def add_run(self, rows: list[dict[str, Any]]) -> None:
        """Appends the samples of one run, at once."""
        whole = [{"ok": True, **row} for row in rows]
        self._append(*whole)
        self._rows += whole

    def _append(self, *lines: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    @classmethod
    def begin(cls, path: Path, header: Mapping[str, Any]) -> Self:
        """Creates the file, or begins another session of it. Refused when it has samples of something else, or of
        another machine."""
        if not path.exists() or not path.stat().st_size:
            return cls(path, header)
        samples, wanted = cls.read(path), json.loads(json.dumps(header))
        differing = [key for key in wanted if key != _ENVIRONMENT and wanted[key] != samples.header.get(key)]
        why = [f"{key}: {samples.header.get(key)} there, {wanted[key]} now" for key in differing]
        if why := why or changed_facts(samples.header[_ENVIRONMENT], wanted[_ENVIRONMENT]):
            what = f"{path} has samples that cannot be continued here"
            raise Refused(Code.WRONG_STATE, what, "; ".join(why), "choose another --out")
        os.truncate(path, len(_whole_lines(path)))
        samples._append({"header": wanted})
        samples.sessions += 1
        return samples

    @classmethod
    def read(cls, path: Path) -> Self:
        """Those of a file, to which nothing is added. A line that a power failure cut off does not count."""
        try:
            lines = [json.loads(line) for line in _whole_lines(path).splitlines()]
            headers = [line["header"] for line in lines if "header" in line]
            samples = cls.__new__(cls)
            samples.path, samples.header, samples.sessions = path, headers[0], len(headers)
        except (OSError, ValueError, LookupError, TypeError) as error:
            what = f"{path} has no samples of a benchmark"
            raise Refused(Code.INVALID_FILE, what, str(error), "wherry bench run NAME --out FILE") from None
        samples._rows = [line for line in lines if "header" not in line]
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

    def last(self, field: str) -> Any:
        """The field of the newest sample; None when there is none."""
        return self._rows[-1].get(field) if self._rows else None


def _whole_lines(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]
