"""BPF maps, programs and their attachment to links, by libbpf (part of every system with `ip`).

Invariant: an object's descriptors are closed with it; a program stays at a link, and a map with the program, until the
link is removed or another program takes its place.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from typing import Any, ClassVar

from wherry.base.errors import Code, Refused

_HASH, _TO_CLASSIFY = 1, 3
"""BPF_MAP_TYPE_HASH, BPF_PROG_TYPE_SCHED_CLS."""
_INGRESS, _REPLACE = 1, 1
"""BPF_TC_INGRESS, BPF_TC_F_REPLACE."""
_LOG = 65536
_INSTRUCTION = struct.Struct("=BBhi")


class _Hook(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("sz", ctypes.c_size_t), ("ifindex", ctypes.c_int), ("attach_point", ctypes.c_int), ("parent", ctypes.c_uint32),
    ]  # fmt: skip


class _Options(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("sz", ctypes.c_size_t), ("prog_fd", ctypes.c_int), ("flags", ctypes.c_uint32), ("prog_id", ctypes.c_uint32),
        ("handle", ctypes.c_uint32), ("priority", ctypes.c_uint32),
    ]  # fmt: skip


class _LoadOptions(ctypes.Structure):
    """The first fields of struct bpf_prog_load_opts of libbpf 1; it takes a shorter one for older."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("sz", ctypes.c_size_t), ("attempts", ctypes.c_int), ("expected_attach_type", ctypes.c_int),
        ("prog_btf_fd", ctypes.c_uint32), ("prog_flags", ctypes.c_uint32), ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32), ("attach_btf_id", ctypes.c_uint32), ("attach_prog_fd", ctypes.c_uint32),
        ("attach_btf_obj_fd", ctypes.c_uint32), ("fd_array", ctypes.c_void_p), ("func_info", ctypes.c_void_p),
        ("func_info_cnt", ctypes.c_uint32), ("func_info_rec_size", ctypes.c_uint32), ("line_info", ctypes.c_void_p),
        ("line_info_cnt", ctypes.c_uint32), ("line_info_rec_size", ctypes.c_uint32), ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32), ("log_buf", ctypes.c_char_p),
    ]  # fmt: skip


@functools.cache
def _libbpf() -> ctypes.CDLL:
    """The library, silent. UNSUPPORTED when this machine has none, or one before 1.0."""
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise Refused(Code.UNSUPPORTED, "this machine has no libbpf", str(error), "apt-get install libbpf1") from None
    library.libbpf_set_print(None)
    return library


class Map:
    """A hash from bytes to bytes of fixed lengths."""

    def __init__(self, name: str, key: int, value: int, most: int) -> None:
        """`key` and `value` are their lengths, `most` the largest number of entries. UNSUPPORTED where the kernel has
        none."""
        self.fd = _checked(_libbpf().bpf_map_create(_HASH, name.encode(), key, value, most, None), "make a BPF map")

    def put(self, key: bytes, value: bytes) -> None:
        """Adds or replaces an entry."""
        _checked(_libbpf().bpf_map_update_elem(self.fd, key, value, ctypes.c_uint64(0)), "write a BPF map")

    def drop(self, key: bytes) -> None:
        """Removes an entry, if there is one."""
        _checked(_libbpf().bpf_map_delete_elem(self.fd, key), "write a BPF map", missing=True)

    def close(self) -> None:
        os.close(self.fd)


class Program:
    """A traffic classifier that may redirect frames ("direct action")."""

    def __init__(self, name: str, instructions: bytes) -> None:
        """UNSUPPORTED, with the end of the verifier's log, when the kernel does not take it."""
        log = ctypes.create_string_buffer(_LOG)
        options = _LoadOptions(sz=ctypes.sizeof(_LoadOptions), log_level=1, log_size=_LOG)
        options.log_buf = ctypes.cast(log, ctypes.c_char_p)
        count = ctypes.c_size_t(len(instructions) // _INSTRUCTION.size)
        found = _libbpf().bpf_prog_load(_TO_CLASSIFY, name.encode(), b"GPL", instructions, count, ctypes.byref(options))
        self.fd = _checked(found, "load a BPF program", log.value.decode(errors="replace").strip()[-300:])

    def attach(self, index: int) -> None:
        """Attaches it to the ingress of the link of this index in the caller's network namespace, in place of another
        one. UNSUPPORTED when the kernel refuses."""
        hook = _Hook(sz=ctypes.sizeof(_Hook), ifindex=index, attach_point=_INGRESS)
        _checked(_libbpf().bpf_tc_hook_create(ctypes.byref(hook)), "make a classifier", present=True)
        options = _Options(sz=ctypes.sizeof(_Options), prog_fd=self.fd, flags=_REPLACE, handle=1, priority=1)
        _checked(_libbpf().bpf_tc_attach(ctypes.byref(hook), ctypes.byref(options)), "attach a BPF program")

    def close(self) -> None:
        os.close(self.fd)


def instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One instruction (RFC 9669): opcode, destination and source register, offset, immediate value."""
    return _INSTRUCTION.pack(code, to | source << 4, offset, value)


def _checked(result: int, what: str, more: str = "", *, missing: bool = False, present: bool = False) -> int:
    """The result, unless it is a negative errno."""
    if result >= 0 or missing and result == -errno.ENOENT or present and result == -errno.EEXIST:
        return result
    why = os.strerror(-result) + (f": {more}" if more else "")
    raise Refused(Code.UNSUPPORTED, f"the kernel did not {what}", why, "wherry doctor")
