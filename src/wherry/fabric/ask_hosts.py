"""The same question to several hosts at once, of which some may be silent.

Invariant: an answer that does not come in time is an error of that host alone; nobody waits for it any longer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from wherry.base.errors import Code, Failed, LostContact, WherryError

T = TypeVar("T")
SECONDS = 10.0
"""For an answer. A host that needs longer is not known for once; it counts as silent later (`hostlink.link`)."""
_PARALLEL = 32


def ask_hosts(hosts: Iterable[str], ask: Callable[[str], T]) -> tuple[dict[str, T], dict[str, WherryError]]:
    """The answers, and the errors of the other hosts. Waits `SECONDS` at most."""
    names, todo, done = list(hosts), queue.SimpleQueue[str](), queue.SimpleQueue[tuple[str, T | WherryError]]()
    for name in names:
        todo.put(name)

    def work() -> None:
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            done.put((name, _answer(name, ask)))

    for _ in names[:_PARALLEL]:  # these threads are nobody's to wait for: a silent host holds its own up
        threading.Thread(target=work, name="ask-hosts", daemon=True).start()
    answers, errors, deadline = dict[str, T](), dict[str, WherryError](), time.monotonic() + SECONDS
    while len(answers) + len(errors) < len(names):
        try:
            name, found = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(found, WherryError):
            errors[name] = found
        else:
            answers[name] = found
    for name in names:
        if name not in answers and name not in errors:
            why = f"it did not answer within {SECONDS:g} s"
            errors[name] = LostContact(Code.UNREACHABLE, f"host {name} does not answer", why, "wherry host list")
    return answers, errors


def _answer(name: str, ask: Callable[[str], T]) -> T | WherryError:
    try:
        return ask(name)
    except WherryError as error:
        return error
    except Exception as error:
        return Failed(Code.FAILED, f"host {name} could not be asked", repr(error), "wherry doctor")
