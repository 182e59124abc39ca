"""wherry-verify: the same is found to be the same, every way to differ is found. Images are made here by hand."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting
from fuzzing import fuzz
from wherry.base.paths import native_program

TOP = Path(__file__).resolve().parents[2] / "native"
PAGE = mmap.PAGESIZE
PARENT, PRESENT = 1, 4
MENDED_AT_MOST = 64 << 10
MAGIC = struct.pack("<II", 0x54564319, 0)


def _varint(number: int) -> bytes:
    rest, low = number >> 7, number & 127
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message of numbers and submessages."""
    packed = b""
    for number, value in fields:
        if isinstance(value, int):
            packed += _varint(number << 3) + _varint(value)
        else:
            packed += _varint(number << 3 | 2) + _varint(len(value)) + value
    return packed


def _image(*messages: bytes) -> bytes:
    return MAGIC + b"".join(struct.pack("<I", len(message)) + message for message in messages)


def _pagemap(pages: int, *extents: tuple[int, int, int]) -> bytes:
    return _image(_message((1, pages)), *(_message((1, at), (2, count), (4, flags)) for at, count, flags in extents))


class Images:
    """Four pages of this process, as CRIU's images have them."""

    def __init__(self, directory: Path) -> None:
        self.memory = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory[:] = os.urandom(4 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.arrived = directory / "arrived"
        self.sent = self.arrived
        """The images at the source."""
        self.arrived.mkdir()
        extents = [(self.address + first * PAGE, count, PRESENT) for first, count in ((0, 2), (2, 1), (3, 1))]
        (self.arrived / f"pagemap-{self._inside()}.img").write_bytes(_pagemap(7, *extents))
        self.pages = self.arrived / "pages-7.img"
        self.pages.write_bytes(self.memory)
        (self.arrived / "files.img").write_text("of the node")
        self.tasks = directory / "tasks"
        self.tasks.write_text(f"{os.getpid()}\n")

    @staticmethod
    def _inside() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])

    def list(self) -> bytes:
        words = [str(native_program("wherry-verify")), "digest", str(self.arrived)]
        done = subprocess.run(words, input=b"\n", capture_output=True, timeout=waiting.bound())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def compare(self, records: bytes) -> tuple[int, str]:
        code, said, _ = self.compared(records)
        return code, said

    def compared(self, records: bytes) -> tuple[int, str, bytes]:
        """The exit code, the messages, and the records that were sent again."""
        words = [str(native_program("wherry-verify")), "compare", str(self.sent), str(self.tasks)]
        done = subprocess.run(words, input=records, capture_output=True, timeout=waiting.bound())
        return done.returncode, done.stderr.decode(), done.stdout

    def check(self) -> tuple[int, str]:
        return self.compare(self.list())


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Images]:
    yield Images(tmp_path)


def test_the_same_is_the_same(images: Images) -> None:
    assert images.check() == (0, f"{4 * PAGE + len('of the node')}\n")


@pytest.mark.parametrize("damaged", [False, True])
def test_pages_are_summed_up_while_they_arrive(images: Images, damaged: bool) -> None:
    """Pages with checksums are not read again: `digest` gets its command when nothing is left to read."""
    arrived = bytearray(images.pages.read_bytes())
    arrived[7] ^= damaged
    images.pages.write_bytes(b"")
    words = [str(native_program("wherry-verify")), "digest", str(images.arrived)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listing:
        with images.pages.open("ab", buffering=0) as pages:
            for at in range(0, len(arrived), PAGE // 2):
                pages.write(arrived[at : at + PAGE // 2])
                time.sleep(0.01)
        records, _ = listing.communicate(b"\n", timeout=waiting.bound())
    code, said = images.compare(records)
    assert (code, f"0x{images.address:x}" in said) == ((2, True) if damaged else (0, False)), said


@pytest.mark.parametrize("page", [2, 3])
def test_one_bit_of_a_page_is_found(images: Images, page: int) -> None:
    whole = bytearray(images.pages.read_bytes())
    whole[page * PAGE + 5] ^= 1
    images.pages.write_bytes(whole)
    code, said = images.check()
    assert code == 2 and f"0x{images.address + page * PAGE:x}, {PAGE} bytes, differs from the source" in said


def test_images_that_differ_or_are_gone_are_found(images: Images, tmp_path: Path) -> None:
    images.sent = Path(shutil.copytree(images.arrived, tmp_path / "sent", symlinks=True))
    (images.arrived / "files.img").write_text("of the mode")
    assert images.check() == (1, "the file files.img differs from the source\n")
    (images.sent / "files.img").unlink()
    code, said = images.check()
    assert code == 1 and said.startswith("the file files.img cannot be read at the source")


def test_where_the_kernel_writes_itself_is_left_out(images: Images) -> None:
    """The rseq area of a thread may differ, the byte behind it may not."""
    area = images.address + 64
    (images.arrived / "core-9.img").write_bytes(_image(_message((1, 1), (5, _message((15, _message((1, area))))))))
    whole = bytearray(images.pages.read_bytes())
    whole[64 + 31] ^= 1
    images.pages.write_bytes(whole)
    assert images.check()[0] == 0
    whole[64 + 32] ^= 1
    images.pages.write_bytes(whole)
    assert images.check()[0] == 2


@pytest.fixture
def restored(images: Images, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process that has the four pages at the same address, read-only; the last one damaged. And the list of tasks."""
    child = os.fork()
    if not child:
        images.memory[3 * PAGE + 5] ^= 1
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(images.address), 4 * PAGE, mmap.PROT_READ)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    tasks = tmp_path / "restored"
    tasks.write_text(f"{child}\n")
    yield child, tasks
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def mend(tasks: Path, records: bytes) -> tuple[int, str]:
    words = [str(native_program("wherry-verify")), "patch", str(tasks)]
    done = subprocess.run(words, input=records, capture_output=True, timeout=waiting.bound())
    return done.returncode, done.stderr.decode()


def memory_of(pid: int, address: int, count: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address)
        return memory.read(count)


def sent_again(images: Images, child: int) -> bytes:
    """The records that are sent when the last page arrived with a wrong bit, for a process with another number."""
    whole = bytearray(images.pages.read_bytes())
    whole[3 * PAGE + 5] ^= 1
    images.pages.write_bytes(whole)
    code, _, records = images.compared(images.list())
    assert code == 2
    return re.sub(rb"^m \d+ ", b"m %d " % child, records)


def test_what_differs_is_mended_whatever_its_protection(images: Images, restored: tuple[int, Path]) -> None:
    child, tasks = restored
    right = bytes(images.memory)
    assert memory_of(child, images.address, 4 * PAGE) != right
    assert mend(tasks, sent_again(images, child)) == (0, "")
    assert memory_of(child, images.address, 4 * PAGE) == right


def test_what_is_sent_again_is_written_whole_and_right_or_not_at_all(
    images: Images, restored: tuple[int, Path]
) -> None:
    child, tasks = restored
    good, wrong = sent_again(images, child), memory_of(child, images.address, 4 * PAGE)
    flipped = bytearray(good)
    flipped[-10] ^= 1
    nobody = re.sub(rb"^m \d+ ", b"m 0 ", good)
    much = re.sub(rb" \d+ ([0-9a-f]{8})\0", rb" %d \1\0" % (MENDED_AT_MOST + 1), good)
    for bad in (b"", b"x\0", b"m 1 2\0", good[: good.index(b"\0") + 9], bytes(flipped), nobody, much):
        code, said = mend(tasks, bad)
        assert code == 125 and "cannot be written" in said, bad[:40]
        assert memory_of(child, images.address, 4 * PAGE) == wrong
    assert mend(tasks, good[:-2])[0] == 125  # the end is missing


def test_only_a_little_is_sent_again(images: Images) -> None:
    me = images._inside()
    with mmap.mmap(-1, MENDED_AT_MOST + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        kept = ctypes.c_char.from_buffer(memory)
        at = ctypes.addressof(kept)
        for sizes, code in (([16], 2), ([8, 8], 2), ([8, 9], 1), ([17], 1)):
            runs = [b"p %d %x %d 00000001\0" % (me, at, pages * PAGE) for pages in sizes]
            assert images.compare(b"".join(runs) + b".\0")[0] == code, sizes
        del kept


def test_shared_memory_is_found_through_who_maps_it(images: Images) -> None:
    with mmap.mmap(-1, 2 * PAGE) as shared:
        shared[:] = os.urandom(2 * PAGE)
        kept = ctypes.c_char.from_buffer(shared)
        at, me = ctypes.addressof(kept), images._inside()
        vma = _message((1, at), (2, at + 2 * PAGE), (3, PAGE), (4, 5), (7, 1 << 8))
        (images.arrived / f"mm-{me}.img").write_bytes(_image(_message((14, vma))))
        (images.arrived / "pagemap-shmem-5.img").write_bytes(_pagemap(8, (2 * PAGE, 1, PRESENT)))
        pages = images.arrived / "pages-8.img"
        pages.write_bytes(shared[PAGE:])
        assert images.check() == (0, f"{5 * PAGE + len('of the node') + _sizes(images.arrived, 'mm-*')}\n")
        pages.write_bytes(bytes(PAGE))
        code, said = images.check()
        assert code == 2 and f"0x{at + PAGE:x}" in said
        del kept


def _sizes(directory: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in directory.glob(pattern))


def test_a_list_that_is_not_whole_tells_nothing(images: Images) -> None:
    records = images.list()
    for part in (b"", records[: records.index(b"\0") + 1], b"x\0.\0", b"p 1 2\0.\0"):
        code, said = images.compare(part)
        assert code == 125 and "not whole" in said


OF_AN_EARLIER_DUMP = _pagemap(7, (0x400000, 4, PARENT))
DAMAGE = b"", b"\x19\x43\x56\x54", MAGIC + b"\xff\xff\xff\xff", MAGIC + b"\x02\0\0\0\x08\xff", OF_AN_EARLIER_DUMP


@pytest.mark.parametrize("damage", DAMAGE)
def test_images_that_cannot_be_read_are_told(images: Images, damage: bytes) -> None:
    (images.arrived / f"pagemap-{images._inside()}.img").write_bytes(damage)
    words = [str(native_program("wherry-verify")), "digest", str(images.arrived)]
    done = subprocess.run(words, input=b"\n", capture_output=True, timeout=waiting.bound())
    assert done.returncode == 125 and b"the images cannot be read" in done.stderr


@pytest.mark.parametrize("name", ["mm-9.img", "pages-7.img"])
def test_an_image_that_is_no_file_holds_up_nothing(images: Images, name: str) -> None:
    """Opening a named pipe would wait for a writer that never comes."""
    (images.arrived / name).unlink(missing_ok=True)
    os.mkfifo(images.arrived / name)
    words = [str(native_program("wherry-verify")), "digest", str(images.arrived)]
    done = subprocess.run(words, input=b"\n", capture_output=True, timeout=waiting.bound())
    assert done.returncode == 125 and b"the images cannot be read" in done.stderr


@pytest.mark.thorough  # a fuzzer
def test_no_input_breaks_the_reader() -> None:
    parts = [
        _pagemap(1, (0x400000, 3, PRESENT), (0x403000, 2, PARENT)),
        _pagemap(1, (0, 1, PRESENT)),
        _image(_message((14, _message((1, 0x7F0000), (2, 0x7F4000), (3, 0), (4, 2), (7, 256))))),
        _image(_message((1, 1), (5, _message((15, _message((1, 0x401010))))))),
    ]
    longest = max(map(len, parts))
    corpus = {"images": b"".join(part[8:].ljust(longest, b"\0") for part in parts)}
    fuzz(("fuzz/fuzz_criu_image.c", "verify/image_pages.c", "verify/criu_image.c"), corpus, 3000, 2048)
