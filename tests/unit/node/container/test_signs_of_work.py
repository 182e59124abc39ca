"""Working programs of a move are distinguished from hanging ones."""

from __future__ import annotations

import subprocess
import sys

import waiting
from wherry.node.container.progress_bounds import Sign, first_of, work_of

SPIN = """
import hashlib, threading, time
def spin():  # without Python's lock, for which a thread sleeps
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
threading.Thread(target=spin, daemon=True).start()
print("spins", flush=True)
time.sleep(60)
"""


def test_a_thread_that_waits_for_a_processor_works() -> None:
    """Also between two ticks of the clock by which the kernel counts, and beside a main thread that sleeps."""
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "spins\n"
            sign = work_of(lambda: [process.pid])
            waiting.until(lambda: sign() and sign(), "it spins")
            assert all(sign() for _ in range(20))
        finally:
            process.kill()


def test_who_sleeps_or_has_ended_does_not() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        sign = work_of(lambda: [process.pid])
        for _ in range(200):
            if not sign():
                break
        assert not sign()
        process.kill()
    assert not sign() and not sign()


def test_of_several_signs_those_behind_one_that_sees_progress_are_not_asked() -> None:
    asked = list[str]()

    def sign(name: str, *seen: bool) -> Sign:
        left = iter(seen)

        def look() -> bool:
            asked.append(name)
            return next(left)

        return look

    either = first_of(sign("cheap", True, False, False), sign("dear", True, False))
    assert [either(), either(), either()] == [True, True, False]
    assert asked == ["cheap", "cheap", "dear", "cheap", "dear"]
