"""CPU time of the programs that join two sites: which processes are watched, and its parts by size of messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import waiting
from wherry.lab.study import gateways
from wherry.lab.study.gateways import GATEWAY, LINK, SOFTIRQ, GatewayWatch, Sample, Window

BUSY = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())  # PR_SET_NAME
print("named", flush=True)
while True:
    end = time.process_time() + 0.01
    while time.process_time() < end: pass
    time.sleep(float(sys.argv[2]))
"""


def line(number: int, size: int, microseconds: float = 9.5) -> bytes:
    return f"{number:3}: {size:7} bytes    100 times -->     51.20 Mbps in {microseconds:10.2f} usec\n".encode()


def test_a_size_lasts_from_the_line_before_to_its_own() -> None:
    """A line may arrive in pieces, and other lines in between; the first size begins with the first output."""
    chunks = [
        ("stderr", 10.0, b"0: one\n1: two\nNow starting the main loop\n"),
        ("stderr", 10.5, line(0, 1)),
        ("stderr", 10.6, line(1, 1024)[:20]),
        ("stdout", 10.7, b"something else\n"),
        ("stderr", 11.5, line(1, 1024)[20:] + line(2, 4096)),
        ("stderr", 14.0, line(3, 1 << 20)),
    ]
    assert gateways.windows(chunks) == [
        Window(1, 10.0, 10.5),
        Window(1024, 10.5, 11.5),
        Window(4096, 11.5, 11.5),
        Window(1 << 20, 11.5, 14.0),
    ]
    assert gateways.windows([]) == []


def sampled(*rows: tuple[float, float, float, float]) -> list[Sample]:
    """Moment, seconds of two gateways and of soft interrupts."""
    return [Sample(at, {(GATEWAY, 7): one, (GATEWAY, 8): two, (SOFTIRQ, 0): soft}) for at, one, two, soft in rows]


def test_the_busiest_gateway_counts_by_size_of_the_messages() -> None:
    samples = sampled((0, 0, 0, 0), (1, 0.1, 0.2, 0.05), (2, 0.2, 1.2, 0.1), (3, 1.2, 2.1, 0.4))
    windows = [Window(1, 0.0, 1.0), Window(1 << 20, 1.0, 2.5), Window(8 << 20, 2.5, 3.0)]
    found = {(value.metric, value.x): value.value for value in gateways.values(samples, windows)}
    assert found == {
        (GATEWAY, 1 << 10): pytest.approx(0.2),
        (GATEWAY, 1 << 20): pytest.approx((1.0 + 0.45) / 1.5),
        (GATEWAY, 1 << 30): pytest.approx(1.0),
        (SOFTIRQ, None): pytest.approx(0.4 / 3),
    }, "the one that used most of each class; no emulator ran, and no messages between 1 and 64 KiB"


def test_what_is_shorter_than_two_samples_has_no_share() -> None:
    samples = sampled((0, 0, 0, 0), (1, 0.9, 0, 0))
    assert gateways.values(samples, [Window(1, 0.1, 0.2)]) == []
    assert gateways.values([], [Window(1, 0.0, 1.0)]) == []
    outside = gateways.values(samples, [Window(1, 5.0, 6.0)])
    assert {value.value for value in outside} == {0.0}, "nothing was sampled there"


def test_recorded_processes_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names, not all that have a file; a process that ends in the middle keeps its CPU time."""
    monkeypatch.setattr(gateways, "_PERIOD", 0.01)
    monkeypatch.setattr(gateways, "_SHORTEST", 1e-9)

    def used(samples: Sequence[Sample], pid: int) -> float:
        (key,) = (key for key in samples[0].used if key[1] == pid)
        return samples[-1].used[key] - samples[0].used[key]

    def start(name: str, pause: str, file: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, "-c", BUSY, name, pause], stdout=subprocess.PIPE, text=True)
        assert child.stdout and child.stdout.readline() == "named\n"
        (tmp_path / "links" / "a-b").mkdir(parents=True, exist_ok=True)
        (tmp_path / "links" / file).write_text(f"{child.pid} 12345\n")
        return child

    children = [
        start("openvpn", "0", "a-b/0.pid"),
        start("openvpn", "0.2", "a-b/1.pid"),
        start("wherry-link", "0.05", "a-b.sock.pid"),
        start("other", "0", "c.pid"),
    ]
    (tmp_path / "links" / "gone.pid").write_text("999999999 1\n")
    (tmp_path / "links" / "torn.pid").write_text("")
    try:
        with GatewayWatch(tmp_path / "links") as watch:
            waiting.until(lambda: watch.samples, "a sample")
            waiting.until(lambda: all(used(watch.samples, child.pid) for child in children[:3]), "use of the processor")
            children[1].kill()
            killed = len(watch.samples)
            waiting.until(lambda: len(watch.samples) > killed + 1, "samples of what is left")
    finally:
        for child in children:
            child.kill()
            child.communicate()
    keys = {key for sample in watch.samples for key in sample.used}
    assert keys == {(GATEWAY, children[0].pid), (GATEWAY, children[1].pid), (LINK, children[2].pid), (SOFTIRQ, 0)}
    samples = watch.samples[:killed]
    whole = Window(1, samples[0].moment, samples[-1].moment)
    values = {value.metric: value.value for value in gateways.values(samples, [whole])}
    seconds = whole.end - whole.begin
    assert values[GATEWAY] == pytest.approx(max(used(samples, child.pid) for child in children[:2]) / seconds)
    assert values[LINK] == pytest.approx(used(samples, children[2].pid) / seconds)
