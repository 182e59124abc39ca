"""wherry-pager send over several connections, compressed and sealed; test_pager_send compares every page."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from stream_codec import readable
from test_pager_send import (  # noqa: F401 - two are fixtures
    Sender,
    connected,
    differing,
    in_child,
    node,
    programs,
    pytestmark,
)

import waiting
from wherry.fabric.cgroup import Cgroup


def test_the_loss_of_one_connection_is_found_while_the_others_are_well(
    programs: tuple[Path, Path],  # noqa: F811
    node: Cgroup,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The sender waits for an answer on the first one, and has nothing to send on the lost one."""
    process = in_child(node, "import time\nprint('ready', flush=True)\ntime.sleep(60)")
    sender = Sender(programs[0], node, tmp_path, count=4)
    sender.line()
    sender.receiver.answers = False
    sender.say("round")
    sender.receiver.await_end("R", 1)
    sender.receiver.reset(2)
    _, errors = sender.process.communicate(timeout=waiting.bound())
    assert sender.process.returncode == 3 and "a connection to the destination is lost" in errors
    process.kill()
    process.communicate()


def test_what_cannot_be_compressed_is_sent_as_it_is(
    programs: tuple[Path, Path],  # noqa: F811
    node: Cgroup,  # noqa: F811
    tmp_path: Path,
) -> None:
    size = 32 << 20
    process = in_child(
        node,
        f"""
        import mmap, os, random, time
        areas = [mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
        areas[0][:] = b"twelve bytes" * ({size} // 12) + bytes({size} % 12)
        areas[1][:] = os.urandom({size})
        print("ready", flush=True)
        time.sleep(60)
        """,
    )
    sender = Sender(programs[0], node, tmp_path, compress=True)
    sender.line()
    node.freeze()
    sender.ask("last")
    sent = int(sender.line()[1])
    wrong, _ = differing(node, sender.receiver)
    assert not wrong and sender.receiver.compressed > 4
    assert size < sender.receiver.received <= sent < 1.5 * size, "the random half as it is, the other one hardly"
    sender.end()
    node.thaw()
    process.kill()
    process.communicate()


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)])
def test_a_key_has_32_bytes(
    programs: tuple[Path, Path],  # noqa: F811
    node: Cgroup,  # noqa: F811
    tmp_path: Path,
    key: bytes,
) -> None:
    (reader,) = readable(key)
    ours, theirs = connected()
    words = [str(programs[0]), "send", "--tasks", node.freezer_procs_file(), "--hidden", str(tmp_path / "hidden")]
    words += ["--stream", str(theirs.fileno()), "--key", str(reader)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=waiting.bound(), pass_fds=[theirs.fileno(), reader], input=""
    )
    assert done.returncode == 1 and done.stdout == "" and "cannot be served" in done.stderr
    for end in (ours, theirs):
        end.close()
    os.close(reader)
