"""Requests to the daemon, and operations that they begin."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError, from_dict
from wherry.client.row import Row
from wherry.client.transport import Transport

Progress = Callable[[str], None]
LONGEST_PAGE = 10_000
POLL = 20.0
"""Length of one long poll in seconds."""


def is_done(operation: Row) -> bool:
    """False while the operation runs or waits. Raises the error of a failed or cancelled one."""
    if operation.state not in ("waiting", "running", "done"):
        raise from_dict(operation.error or {})
    return operation.state == "done"


def quiet(_text: str) -> None:
    """Ignores progress."""


class Requests:
    """A connection to the daemon."""

    interrupted = False
    """True when Ctrl-C came during `wait`, whatever the result of the operation."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, path: str, **query: Any) -> Any:
        """The JSON that a path answers."""
        return self._transport.ask("GET", path, **query)

    def each(self, path: str, **query: Any) -> Iterator[Any]:
        """The rows of a list, as JSON, of all its pages; a page is asked for when it is needed. `limit` is the size of
        a page."""
        for page in self._transport.pages(path, **query):
            yield from page

    def some(self, path: str, most: int | None, **query: Any) -> tuple[list[Any], bool]:
        """At most so many rows of a list (None: all), and whether there are more."""
        found, more = list[Any](), False
        for page in self._transport.pages(path, limit=most if most and most <= LONGEST_PAGE else None, **query):
            if more := most is not None and len(found) >= most:
                break
            found = [*page, *found] if query.get("newest") else [*found, *page]
        if most is not None and len(found) > most:
            found, more = (found[-most:] if query.get("newest") else found[:most]), True
        return found, more

    def operations(self, running: bool = False) -> list[Row]:
        """Oldest first."""
        return [Row(data) for data in self.each("/v1/operations", running=running)]

    def operation(self, id: str) -> Row:
        """One operation."""
        return Row(self.get(f"/v1/operations/{id}")["operation"])

    def cancel(self, id: str) -> Row:
        """Requests the cancellation of an operation."""
        return Row(self._transport.ask("POST", f"/v1/operations/{id}/cancel"))

    def wait(self, id: str, progress: Progress = quiet, seconds: float = math.inf) -> Row:
        """Waits until the operation is done, and raises its error. Ctrl-C cancels it; a second Ctrl-C lets it run.

        After `seconds` the operation is cancelled and TIMED_OUT is raised; it may still be ending then.
        """
        after, interrupted, deadline = 0, False, time.monotonic() + seconds
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:  # around everything: Ctrl-C at any point cancels the operation
                found = self.get(f"/v1/operations/{id}", wait=min(POLL, remaining), after=after)
                after = found["next"]
                for line in found["lines"]:
                    progress(line)
                operation = Row(found["operation"])
                if is_done(operation):
                    return operation
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = self.interrupted = True
                self._cancel_quietly(id, progress)  # first: printing fails when the terminal is gone
                progress("cancelling; Ctrl-C again leaves it running")
                continue
            if not remaining:
                self._cancel_quietly(id, progress)
                what = f"{operation.kind} did not end within {seconds:g} s"
                raise Failed(Code.TIMED_OUT, what, "it is being cancelled", f"wherry op show {id}")

    def _begin(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Row:
        """Begins an operation. Ctrl-C before the answer cancels it: the request may have begun it already, and the same
        request with the same idempotency key returns it. A second Ctrl-C gives up."""
        headers = {**(headers or {}), "Idempotency-Key": os.urandom(16).hex()}
        ask = partial(self._transport.ask, method, path, body=body, headers=headers, **query)
        try:
            return Row(ask())
        except KeyboardInterrupt:
            with suppress(WherryError):  # it was refused, or cannot be cancelled
                self.cancel(Row(ask()).id)
            raise

    def _cancel_quietly(self, id: str, progress: Progress) -> None:
        try:
            self.cancel(id)
        except Refused as error:
            progress(str(error))
