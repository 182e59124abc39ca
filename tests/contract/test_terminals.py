"""What was written to a pseudo-terminal, and not read yet, is there after a move, and after one that was taken back."""

from __future__ import annotations

import os

import pytest
from engine_node import EngineNode, Mode
from script_node import begin

import waiting
from wherry.base.errors import Code, Failed
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
