"""Bytes that were written to a pseudo-terminal, and not read yet, are there after a move, and after a failed move."""

from __future__ import annotations

import os
import termios

import pytest
from contract_names import INSTANCE
from engine_node import EngineNode, Mode
from script_node import begin

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.node.container.mover import ContainerMover

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="container nodes need root"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True),
]
SCRIPT = """
import os, pty, time, tty
master, slave = pty.openpty()
tty.setraw(slave)
if not os.fork():
    number = 0
    while True:
        rest = b"".join(b"%d\\n" % (number + more) for more in range(SIZE))
        number += SIZE
        while rest:
            rest = rest[os.write(slave, rest):]
part, next_one, wrong = b"", 0, []
time.sleep(0.5)
open("/tmp/result", "w").write("0 []")
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/enough"):
    *lines, part = (part + os.read(master, 300)).split(b"\\n")
    for line in lines:
        if int(line) != next_one:
            wrong.append((int(line), next_one))
            next_one = int(line)
        next_one += 1
    with open("/tmp/read", "w") as file:
        file.write(f"{next_one} {wrong}")
    os.rename("/tmp/read", "/tmp/result")
    time.sleep(0.01)
"""

UNREAD = """
import errno, fcntl, os, pty, select, struct, termios, time, tty

def opened(slaves=1, is_raw=False, is_slave_first=False):
    master, slave = pty.openpty()
    if is_raw:
        tty.setraw(slave)
    again = [os.open(os.ttyname(slave), os.O_RDWR | os.O_NOCTTY) for _ in range(slaves - 1)]
    if is_slave_first:  # CRIU takes descriptors by their numbers
        number = fcntl.fcntl(master, fcntl.F_DUPFD, 200)
        os.close(master)
        master = number
    for end in (master, slave, *again):
        os.set_blocking(end, False)
    return master, [slave, *again]

def reads(end):
    got = []
    while True:
        try:
            got.append(os.read(end, 5000))
        except OSError as error:
            return got if error.errno == errno.EAGAIN else [*got, errno.errorcode[error.errno]]

def shown(master):
    *got, last = [b"", *reads(master)]
    return (b"".join(got), last) if isinstance(last, str) else b"".join([*got, last])

def begin_both_ways(master, slaves):
    os.write(master, b"first\\nsecond\\nha")
    assert os.read(slaves[0], 3) == b"fir"
    os.write(slaves[-1], b"one\\ntwo")

def both_ways(slaves, is_raw, is_slave_first):
    master, slaves = opened(slaves, is_raw, is_slave_first)
    begin_both_ways(master, slaves)
    yield
    typed = reads(slaves[-1])
    os.write(master, b"lf\\n")
    typed += reads(slaves[0])
    if is_raw:
        yield (typed, shown(master)), ([b"st\\nsecond\\nha", b"lf\\n"], b"one\\ntwo")
    yield (typed, shown(master)), (
        [b"st\\n", b"second\\n", b"half\\n"], b"first\\r\\nsecond\\r\\nhaone\\r\\ntwolf\\r\\n")

def marks():
    master, (slave,) = opened()
    os.write(master, b"a\\x04\\x04b\\x16\\nc\\n\\x04\\x16\\x16\\x16\\x04\\0\\x16\\x7fd")
    yield
    typed = reads(slave)
    os.write(master, b"e\\x7f\\r")
    yield typed + reads(slave), [b"a", b"", b"b\\nc\\n", b"", b"\\x16\\x04\\0\\x7fd\\n"]

def closed(is_raw):
    master, slaves = opened(2, is_raw)
    name = os.ttyname(slaves[0])
    begin_both_ways(master, slaves)
    for slave in slaves:
        os.close(slave)
    yield
    got = [shown(master)]
    slave = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    typed = [b"st\\nsecond\\nha"] if is_raw else [b"st\\n", b"second\\n"]
    yield [*got, shown(master), *reads(slave)], [
        (b"one\\ntwo" if is_raw else b"first\\r\\nsecond\\r\\nhaone\\r\\ntwo", "EIO"), b"", *typed]

def closed_and_read():
    master, (slave,) = opened()
    os.close(slave)
    yield
    yield reads(master), ["EIO"]

def lock(master, is_locked):
    fcntl.ioctl(master, 0x40045431, struct.pack("i", is_locked))

def never_opened(is_locked):
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    lock(master, is_locked)
    os.write(master, b"typed\\n")
    select.select([master], [], [])
    yield
    got = [reads(master), reads(master)]
    lock(master, False)
    number = struct.unpack("i", fcntl.ioctl(master, 0x80045430, b"1234"))[0]
    slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    yield [*got, reads(slave)], [[b"typed\\r\\n"], [], [b"typed\\n"]]

def locked():
    master, slaves = opened(2, True)
    begin_both_ways(master, slaves)
    lock(master, True)
    yield
    got = [*reads(slaves[1]), shown(master)]
    try:
        os.open(os.ttyname(slaves[0]), os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        got.append(errno.errorcode[error.errno])
    yield got, [b"st\\nsecond\\nha", b"one\\ntwo", "EIO"]

class Other:
    'Another process, which reads an end on command.'
    def __init__(self, end, *closed):
        self.asked, ask = os.pipe()
        answered, self.answer = os.pipe()
        if os.fork():
            self.ask, self.answered = ask, answered
            return
        for each in closed:
            os.close(each)
        while os.read(self.asked, 1):
            os.write(self.answer, repr(reads(end)).encode())
    def reads(self):
        os.write(self.ask, b"?")
        return eval(os.read(self.answered, 65536))

def of_processes(is_raw):
    master, slaves = opened(3, is_raw)
    begin_both_ways(master, slaves)
    others = [Other(slave, master, *(each for each in slaves if each != slave)) for slave in slaves]
    for slave in slaves:
        os.close(slave)
    yield
    typed = [b"st\\nsecond\\nha"] if is_raw else [b"st\\n", b"second\\n"]
    yield (others[2].reads(), others[0].reads(), shown(master)), (
        typed, [], b"one\\ntwo" if is_raw else b"first\\r\\nsecond\\r\\nhaone\\r\\ntwo")

def master_in_a_child(is_raw):
    master, slaves = opened(2, is_raw)
    begin_both_ways(master, slaves)
    other = Other(master, *slaves)
    os.close(master)
    yield
    typed = [b"st\\nsecond\\nha"] if is_raw else [b"st\\n", b"second\\n"]
    yield (reads(slaves[1]), b"".join(other.reads())), (
        typed, b"one\\ntwo" if is_raw else b"first\\r\\nsecond\\r\\nhaone\\r\\ntwo")

def packets():
    master, (slave,) = opened(is_raw=True)
    fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
    os.write(slave, b"one")
    yield
    got = reads(master)
    os.write(slave, b"two")
    yield got + reads(master), [b"\\0one", b"\\0two"]

def can_write(slave):
    try:
        return os.write(slave, b"x")
    except BlockingIOError:
        return 0

def stopped(is_by_call):
    master, (slave, _) = opened(2)
    os.write(slave, b"one")
    if is_by_call:
        termios.tcflow(slave, termios.TCOOFF)
    else:
        os.write(master, b"\\x13")
        while can_write(slave):
            time.sleep(0.01)
    before = shown(master).count(b"x")
    os.write(master, b"typed\\n")
    yield
    got = [can_write(slave), reads(slave)]
    if is_by_call:
        os.write(master, b"\\x11")
        assert reads(slave) == []
        got.append(can_write(slave))
        termios.tcflow(slave, termios.TCOON)
    else:
        got.append(0)
        os.write(master, b"\\x11")
        assert reads(slave) == []
    yield [*got, can_write(slave), shown(master)], [0, [b"typed\\n"], 0, 1, b"typed\\r\\nx"]

def much(is_raw):
    master, (slave, _) = opened(2, is_raw, True)
    settings = termios.tcgetattr(slave)
    settings[0] |= termios.INLCR | termios.ICRNL
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    lines = [b"%08d" % number for number in range(1000)]
    text = b"".join(line + b"\\r" for line in lines)
    length = 0
    while length < 7200:
        length += os.write(master, text[length : min(length + 500, 7200)])
    yield
    typed = reads(slave)
    got = b"".join(typed) == text[:length].replace(b"\\r", b"\\n")
    end = shown(master)
    yield (got, len(typed) > 500, end), (
        True, not is_raw, b"" if is_raw else b"".join(typed).replace(b"\\n", b"\\r\\n"))

cases = {"marks": marks(), "closed and read": closed_and_read(), "locked": locked(), "packets": packets()}
for is_raw in (False, True):
    for slaves in (1, 2, 3):
        for is_slave_first in (False, True):
            cases[f"{slaves} {is_raw=} {is_slave_first=}"] = both_ways(slaves, is_raw, is_slave_first)
    cases[f"closed {is_raw=}"] = closed(is_raw)
    cases[f"of processes {is_raw=}"] = of_processes(is_raw)
    cases[f"master in a child {is_raw=}"] = master_in_a_child(is_raw)
    cases[f"stopped is_by_call={is_raw}"] = stopped(is_raw)
    cases[f"never opened is_locked={is_raw}"] = never_opened(is_raw)
    cases[f"much {is_raw=}"] = much(is_raw)
for case in cases.values():
    next(case)
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
wrong = []
for name, case in cases.items():
    got, expected = next(case)
    if got != expected:
        wrong.append(f"{name}: {got!r:.200} instead of {expected!r:.200}")
with open("/tmp/found", "w") as file:
    file.write(str(wrong))
os.rename("/tmp/found", "/tmp/result")
"""

FLUSHED = """
import fcntl, os, pty, struct, termios, time
master, slave = pty.openpty()
fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
open("/tmp/ready", "w").close()

def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)
await_file("/tmp/flush")
termios.tcflush(slave, termios.TCIFLUSH)
os.write(slave, b"one")
open("/tmp/flushed", "w").close()
if READS_SOON:
    time.sleep(0.7)
else:
    await_file("/tmp/go")
got = [os.read(master, 10)[0], os.read(master, 10)]
await_file("/tmp/go")
with open("/tmp/found", "w") as file:
    file.write(str(got))
os.rename("/tmp/found", "/tmp/result")
time.sleep(600)
"""
"""A master in packet mode, whose reader gets a flag that the terminal was flushed; nothing can set that again."""


def found(node: EngineNode) -> str:
    """The findings of the script where the node runs now."""
    directory = node.directory(node.node_under_test.source)
    (directory / "go").touch()
    waiting.until((directory / "result").exists, (directory / "said").read_text)
    return (directory / "result").read_text()


def given_up(name: str, _mover: ContainerMover) -> None:
    if name == "restore":
        raise Failed(Code.MOVE_FAILED, "given up")


@pytest.mark.parametrize("size", [1, pytest.param(40, marks=pytest.mark.smoke), 3000])
def test_what_is_in_a_terminal_stays(node: EngineNode, size: int) -> None:
    """It is full all the time: of writes of a few bytes, and of more than there is room for."""
    begin(node, SCRIPT.replace("SIZE", str(size)))

    def read() -> tuple[int, str]:
        text = (node.directory(node.node_under_test.source) / "result").read_text()
        number, _, wrong = text.partition(" ")
        return int(number), wrong

    for turn in range(6):
        before = read()[0]
        if turn % 3 == 2:
            assert node.attempt(Mode(rounds=1), given_up) == "given up"
        else:
            assert node.attempt(Mode(rounds=1)) == ""
        waiting.until(lambda: read()[0] > before + 5000, read)  # noqa: B023 - called in this turn
    assert read()[1] == "[]"


@pytest.mark.parametrize(
    "attempts", [["given up"], pytest.param(["", "given up", ""], marks=pytest.mark.smoke)], ids=["given-up", "moved"]
)
def test_what_is_in_terminals_of_all_kinds_stays(node: EngineNode, attempts: list[str]) -> None:
    """With any number of openings of either end by any process, in both directions, as typed or by lines."""
    begin(node, UNREAD)
    for outcome in attempts:
        assert node.attempt(Mode(rounds=1), given_up if outcome else None) == outcome
    assert found(node) == "[]"


def flush(node: EngineNode) -> None:
    directory = node.directory(node.node_under_test.source)
    (directory / "flush").touch()
    waiting.until((directory / "flushed").exists, "the flush")


def test_a_change_of_state_that_nobody_has_read_refuses_a_move(node: EngineNode) -> None:
    begin(node, FLUSHED.replace("READS_SOON", "False"))
    flush(node)
    with pytest.raises(Refused, match="TIOCPKT"):
        node.attempt(Mode(rounds=1))
    (hindrance,) = (one for one in node.node_under_test.driver.inspect(node.node_under_test.source) if one.prevents)
    assert "TIOCPKT" in hindrance.text
    assert found(node) == str([termios.TIOCPKT_FLUSHREAD, b"\0one"])
    assert node.attempt(Mode(rounds=1)) == ""


@pytest.mark.parametrize("reads_soon", [True, False], ids=["read", "unread"])
def test_a_change_of_state_in_a_round_is_waited_for(node: EngineNode, reads_soon: bool) -> None:
    begin(node, FLUSHED.replace("READS_SOON", str(reads_soon)))

    def change(name: str, _mover: ContainerMover) -> None:
        if name == "prepare":
            flush(node)

    why = node.attempt(Mode(rounds=1), change)
    assert why == "" if reads_soon else "TIOCPKT" in why and "lasted for" in why, why
    assert found(node) == str([termios.TIOCPKT_FLUSHREAD, b"\0one"])


def test_what_does_not_fit_into_a_terminal_has_the_move_taken_back(node: EngineNode) -> None:
    begin(node, UNREAD)

    def add_more(name: str, _mover: ContainerMover) -> None:
        if name == "transfer":
            (note,) = INSTANCE.run.glob(f"nodes/*@{node.node_under_test.destination.host}/**/terminals")
            note.write_text(note.read_text().replace("\n", "78" * 40_000 + "\n"))

    assert "tty params" in node.attempt(Mode(rounds=1), add_more)
    assert found(node) == "[]"
