"""SIGTERM and SIGHUP as Ctrl-C, for commands that have something to cancel or to clean up: by default both would end
the command and nothing else. Its exit code is 128 and the signal then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_received: list[int] = []


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """In the block the first of these signals raises KeyboardInterrupt; later ones do not disturb its handling. A
    signal that is ignored (nohup) stays ignored. Only in the main thread, where Python handles signals."""
    _received.clear()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        _received.append(number)
        if len(_received) == 1:
            raise KeyboardInterrupt

    handled = [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def was_terminated() -> bool:
    """Whether SIGTERM or SIGHUP, not Ctrl-C, raised the KeyboardInterrupt."""
    return bool(_received)


@contextmanager
def received(numbers: Iterable[int], act: Callable[[int], object]) -> Iterator[None]:
    """In the block `act` is called with the number of each of these signals that comes, between two lines of the main
    thread. A signal that is ignored, or handled already, is left so."""
    handled = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, lambda number, _frame: act(number))
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C and these signals come after the block: for a few lines that must not be cut, such as those between the
    fork of a process and the variable that names it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_SIGNALS)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for received in came:
            signal.raise_signal(received)


def exit_code(code: int) -> int:
    """The exit code of a command that ended with `code`: of the signal when one of those cancelled it."""
    return 128 + _received[0] if code and _received else code
