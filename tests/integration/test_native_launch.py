"""wherry-launch and wherry-ns for real: the files of a job, how it ends, and that nothing of it stays."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting
from wherry.base.paths import native_program
from wherry.job.holder_files import read_exit, write_input
from wherry.job.live_streams import OutputFrames

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other users and namespaces are root's")


def gone(pid: int) -> bool:
    """No more there, or a zombie that the machine's first process has not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def of(directory: Path) -> list[int]:
    """The processes that have the directory in their command line."""
    found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if str(directory) in read(path)]
    return [int(process.name) for process in found]


def parent(pid: int) -> int:
    """0 when it has ended."""
    return int((read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() or ["", "0"])[1])


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def launch(directory: Path, *argv: str, options: tuple[str, ...] = (), uid: int = 0, stream: int | None = None) -> str:
    """Starts a job and returns the holder's output; its environment has one variable more."""
    who = ["--dir", str(directory), "--uid", str(uid), "--gid", str(uid), "--groups", "4,24", "--cwd", "/tmp"]
    command = [str(native_program("wherry-launch")), *who, *options, "--", *argv]
    said = subprocess.run(
        command,
        stdin=stream,
        stdout=subprocess.PIPE,
        timeout=waiting.bound(),
        text=True,
        env={"PATH": os.environ["PATH"], "GREETING": "a b"},
    )
    assert (said.returncode == 0) == (said.stdout == "ready\n")
    return said.stdout


def holder(directory: Path) -> int:
    """The holder's pid, after a check that the file has its start time."""
    pid, start = (directory / "pid").read_text().split()
    assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19] == start
    return int(pid)


def ended(directory: Path) -> list[str]:
    waiting.until((directory / "exit").exists, "the end of the job")
    return (directory / "exit").read_text().splitlines()


def output(directory: Path, stream: int) -> bytes:
    data, parts, at = (directory / "output").read_bytes(), [], 0
    while at < len(data):
        which, when, length = struct.unpack(">BQI", data[at : at + 13])
        assert abs(when / 1e9 - time.time()) < 600
        if which == stream:
            parts.append(data[at + 13 : at + 13 + length])
        at += 13 + length
    assert at == len(data)
    return b"".join(parts)


def test_it_keeps_output_and_exit(tmp_path: Path) -> None:
    script = 'cat; id -u; id -G; pwd; echo "$GREETING" >&2; exit 4'
    assert launch(tmp_path, "sh", "-c", script, uid=65534) == "ready\n"
    lines = ended(tmp_path)
    assert lines[0] == "exit 4"
    assert lines[1].startswith("ended ") and abs(int(lines[1].split()[1]) / 1e9 - time.time()) < 600
    assert output(tmp_path, 1) == b"65534\n65534 4 24\n/tmp\n"
    assert output(tmp_path, 2) == b"a b\n"


def test_what_cannot_start_says_why_and_leaves_no_exit(tmp_path: Path) -> None:
    said = launch(tmp_path, "nothing-of-this-name")
    assert said == "failed cannot run nothing-of-this-name: No such file or directory\n"
    assert launch(tmp_path / "none", "true").startswith("failed cannot use the job directory")
    assert not (tmp_path / "exit").exists()


def test_a_job_that_was_given_up_does_not_start_later(tmp_path: Path) -> None:
    """The holder gets no processor, here before it has opened the job's files, until nobody waits for it any more."""
    os.mkfifo(tmp_path / "output")
    who = ["--dir", str(tmp_path), "--uid", "0", "--gid", "0", "--cwd", "/tmp"]
    started = tmp_path / "started"
    with subprocess.Popen([str(native_program("wherry-launch")), *who, "--", "touch", str(started)]) as waits:
        waiting.until(lambda: [pid for pid in of(tmp_path) if parent(pid) not in (0, os.getpid(), waits.pid)], "it")
        waits.kill()
        waits.wait()
    with open(tmp_path / "output", "rb") as output:
        assert output.read() == b"", "the holder has ended"
    assert (tmp_path / "pid").exists() and not started.exists()


def test_it_lives_apart_from_who_started_it(tmp_path: Path) -> None:
    launch(tmp_path, "sleep", "300")
    pid = holder(tmp_path)
    assert os.getsid(pid) not in (os.getsid(0), pid), "no session of ours, and none that it could lead"
    assert {os.readlink(f"/proc/{pid}/fd/{stream}") for stream in range(3)} == {"/dev/null"}
    os.kill(pid, signal.SIGTERM)
    assert ended(tmp_path)[0] == "signal 15"


def test_a_signal_is_passed_to_the_whole_group_and_the_second_kills(tmp_path: Path) -> None:
    launch(tmp_path, "bash", "-c", "trap 'echo got' INT; sleep 300 & echo up; while :; do sleep 0.05; done")
    pid = holder(tmp_path)
    waiting.until(lambda: output(tmp_path, 1) == b"up\n", "the start of the script")
    os.kill(pid, signal.SIGINT)
    waiting.until(lambda: output(tmp_path, 1) == b"up\ngot\n", "the signal")
    os.kill(pid, signal.SIGINT)
    lines = ended(tmp_path)
    assert lines[0] == "signal 9" and lines[2:] == ["stopped 2"]


def test_a_signal_that_comes_too_late_has_stopped_nothing(tmp_path: Path) -> None:
    """The holder finds it together with the end of the program, whose exit code is the job's."""
    launch(tmp_path, "sh", "-c", "echo $$; exec sleep 300")
    waiting.until(lambda: output(tmp_path, 1), "the start")
    pid, program = holder(tmp_path), int(output(tmp_path, 1))
    os.kill(pid, signal.SIGSTOP)
    os.kill(program, signal.SIGTERM)
    waiting.until(lambda: gone(program), "the end of the program")
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    lines = ended(tmp_path)
    assert lines[0] == "signal 15" and len(lines) == 2


def test_nothing_of_the_group_outlives_the_program(tmp_path: Path) -> None:
    launch(tmp_path, "sh", "-c", "sleep 300 & echo $!")
    assert ended(tmp_path)[0] == "exit 0"
    left = int(output(tmp_path, 1))
    waiting.until(lambda: gone(left), "the end of the child left behind")


def test_a_killed_holder_takes_the_program_along(tmp_path: Path) -> None:
    launch(tmp_path, "sh", "-c", "echo $$; exec sleep 300")
    waiting.until(lambda: output(tmp_path, 1), "the start")
    program = int(output(tmp_path, 1))
    os.kill(holder(tmp_path), signal.SIGKILL)
    waiting.until(lambda: gone(program), "the end of the program")
    assert not (tmp_path / "exit").exists()


def test_output_beyond_the_limit_is_left_out_with_a_line_that_says_so(tmp_path: Path) -> None:
    launch(tmp_path, "sh", "-c", "seq 300000; echo end >&2", options=("--keep", "1048576"))
    (how, _, lost) = ended(tmp_path)
    kept, said = output(tmp_path, 1), output(tmp_path, 2)
    assert how == "exit 0" and b"1\n2\n3\n" in kept and 900_000 < len(kept) <= 1 << 20
    assert said == b"\nwherry: this job has written 0 MiB, what follows is not kept\n"
    everything = b"".join(b"%d\n" % number for number in range(1, 300_001))
    assert everything.startswith(kept) and lost == f"lost {len(everything) - len(kept) + len('end') + 1}"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """The directory of a job on a file system of 64 KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "wherry", str(tmp_path)], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_the_exit_code_is_known_though_the_disk_is_full_at_the_end(small: Path) -> None:
    launch(small, "sh", "-c", f"cat /dev/zero > {small}/fill; head -c 200000 /dev/zero; exit 7")
    pid = holder(small)
    waiting.until(lambda: gone(pid), "the end of the holder")
    assert read_exit(small) is not None and not (small / "exit.new").exists()
    (how, _, lost) = ended(small)
    assert how == "exit 7" and lost.startswith("lost ")


def test_an_end_for_which_there_is_no_room_is_written_when_there_is(small: Path) -> None:
    """As on file systems that write each change to a new place, where reserved room is of no use."""
    launch(small, "sh", "-c", f"read line; cat /dev/zero > {small}/fill; exit 7", options=("--input",))
    pid = holder(small)
    (small / "exit.new").unlink(missing_ok=True)
    write_input(small, 0, b"go\n", end=True)
    waiting.until((small / "exit.new").exists, "an attempt to write the end")
    (small / "fill").unlink()
    assert ended(small)[0] == "exit 7"
    waiting.until(lambda: gone(pid), "the end of the holder")


def test_much_output_is_kept_whole(tmp_path: Path) -> None:
    launch(tmp_path, "sh", "-c", "seq 1 300000; seq 1 1000 >&2")
    assert ended(tmp_path)[0] == "exit 0"
    assert output(tmp_path, 1) == "".join(f"{n}\n" for n in range(1, 300001)).encode()
    assert output(tmp_path, 2) == "".join(f"{n}\n" for n in range(1, 1001)).encode()


def test_input_is_passed_on_once_and_in_order(tmp_path: Path) -> None:
    assert write_input(tmp_path, 0, b"", end=True) is None, "there is no job"
    launch(tmp_path, "sh", "-c", "cat; echo over", options=("--input",), uid=65534)
    assert write_input(tmp_path, 0, b"one\n", end=False) == (4, False)
    waiting.until(lambda: output(tmp_path, 1) == b"one\n", "the first line")
    assert write_input(tmp_path, 0, b"one\ntwo\n", end=False) == (8, False), "by a writer that does not know"
    much = b"".join(b"%d\n" % number for number in range(200_000))
    taken: tuple[int, bool] | None = (8, False)
    while taken and not taken[1]:
        taken = write_input(tmp_path, taken[0], much[taken[0] - 8 :][:100_000], taken[0] + 100_000 >= 8 + len(much))
    assert ended(tmp_path)[0] == "exit 0"
    assert output(tmp_path, 1) == b"one\ntwo\n" + much + b"over\n"


def test_a_program_that_does_not_read_holds_its_writer_up_and_nothing_else(tmp_path: Path) -> None:
    launch(
        tmp_path,
        "sh",
        "-c",
        "echo up; sleep 2; read line; exec 0<&-; echo $line; sleep 1; exit 3",
        options=("--input",),
    )
    much = b"first\n" + bytes(4 << 20)
    taken = write_input(tmp_path, 0, much, end=True)
    assert taken and taken[0] < len(much) and not taken[1], "at most the bytes that the kernel keeps"
    assert ended(tmp_path)[0] == "exit 3"
    assert output(tmp_path, 1) == b"up\nfirst\n"
    waiting.until(lambda: write_input(tmp_path, 0, b"", end=True) is None, "the end of the holder")


def enter(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(native_program("wherry-ns")), *words], capture_output=True, text=True, timeout=waiting.bound()
    )


def test_ns_enters_what_it_is_given() -> None:
    other = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", "echo; exec sleep 300"], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None and other.stdout.readline()
        spaces = ["--net", f"/proc/{other.pid}/ns/net", "--mnt", f"/proc/{other.pid}/ns/mnt"]
        said = enter(*spaces, "--", "readlink", "/proc/self/ns/net", "/proc/self/ns/mnt")
        assert said.stdout.split() == [os.readlink(f"/proc/{other.pid}/ns/{kind}") for kind in ("net", "mnt")]
    finally:
        other.kill()
        other.wait()


def test_ns_says_what_it_could_not_do_and_passes_the_exit_code() -> None:
    assert enter("--", "sh", "-c", "exit 3").returncode == 3
    for words, what in (
        (("--net", "/not/there", "--", "true"), "open the namespace /not/there"),
        (("--cgroup", "/not/there/cgroup.procs", "--", "true"), "join the cgroup /not/there/cgroup.procs"),
        (("--", "nothing-of-this-name"), "run nothing-of-this-name"),
    ):
        said = enter(*words)
        assert (said.returncode, said.stderr) == (125, f"wherry-ns: cannot {what}: No such file or directory\n")


def streamed(directory: Path, *argv: str) -> int:
    """Starts a job whose output is a stream, and returns the pipe to read it from."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        assert launch(directory, *argv, options=("--stream",), stream=writer) == "ready\n"
    finally:
        os.close(writer)
    return reader


def all_of(reader: int) -> dict[str, bytes]:
    """The output to its end, by stream."""
    frames, found = OutputFrames(), {"stdout": b"", "stderr": b""}
    with open(reader, "rb", buffering=0) as pipe:
        while piece := pipe.read(1 << 16):
            for stream, data in frames.feed(piece):
                found[stream] += data
    return found


def test_a_stream_is_whole_and_kept_nowhere(tmp_path: Path) -> None:
    """More than pipes hold, for a reader who begins when the program would have ended."""
    reader = streamed(tmp_path, "sh", "-c", "yes 123456 | head -n 100000; echo end >&2; exit 3")
    assert not (tmp_path / "exit").exists(), "it waits for its reader"
    assert all_of(reader) == {"stdout": b"123456\n" * 100000, "stderr": b"end\n"}
    assert ended(tmp_path)[0] == "exit 3"
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("script", ["exec sleep 1000", "exec yes", "trap '' TERM; while :; do echo; sleep 0.01; done"])
def test_a_program_ends_with_the_reader_of_its_stream(tmp_path: Path, script: str) -> None:
    reader = streamed(tmp_path, "sh", "-c", script)
    pid = holder(tmp_path)
    os.close(reader)
    assert ended(tmp_path)[0] in ("signal 15", "signal 9")
    waiting.until(lambda: gone(pid), "the holder's end")


def test_a_reader_that_waits_does_not_keep_a_job_that_is_ended(tmp_path: Path) -> None:
    reader = streamed(tmp_path, "yes")
    try:
        waiting.until(lambda: waits_to_write(reader), "a full pipe")
        os.kill(holder(tmp_path), signal.SIGINT)
        assert ended(tmp_path)[:1] == ["signal 2"]
    finally:
        os.close(reader)


def waits_to_write(reader: int) -> bool:
    """Whether the pipe has no room for another frame."""
    waiting_bytes = array.array("i", [0])
    fcntl.ioctl(reader, termios.FIONREAD, waiting_bytes)
    return waiting_bytes[0] > fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) // 2
