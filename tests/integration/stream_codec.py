"""Frames of native/pager/stream.h, compressed and sealed as by compress.h and frame_seal.h, by the same libraries."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import struct
from functools import cache

HEADER = struct.Struct(">IIQIIII")
PAGE = 4096
TAG = 16
_SET_TAG, _GET_TAG = 0x11, 0x10  # EVP_CTRL_AEAD_SET_TAG, EVP_CTRL_AEAD_GET_TAG


@cache  # looking for a library runs ldconfig
def _isal() -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library("isal"))
    library.crc32_iscsi.restype = ctypes.c_uint32
    return library


def crc32c(contents: bytes) -> int:
    return int(_isal().crc32_iscsi(contents, len(contents), ctypes.c_uint32(0xFFFFFFFF))) ^ 0xFFFFFFFF


def packed(kind: str, pid: int, address: int, pages: int, length: int, crc: int, sequence: int) -> bytes:
    """A header; `crc` is that of the payload."""
    fields = (ord(kind), pid, address, pages, length)
    return HEADER.pack(*fields, crc ^ _of_header(HEADER.pack(*fields, 0, sequence)), sequence)


def unpacked(header: bytes) -> tuple[str, int, int, int, int, int, int]:
    """The values that `packed` made a header from."""
    kind, pid, address, pages, length, crc, sequence = HEADER.unpack(header)
    return chr(kind), pid, address, pages, length, crc ^ _of_header(header), sequence


def _of_header(header: bytes) -> int:
    return crc32c(header[:24] + header[28:])


def readable(key: bytes) -> list[int]:
    """A descriptor that gives the key."""
    reader, writer = os.pipe()
    os.write(writer, key)
    os.close(writer)
    return [reader]


@cache
def _zstd() -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library("zstd"))
    library.ZSTD_compress.restype = library.ZSTD_decompress.restype = ctypes.c_size_t
    return library


@cache
def _crypto() -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library("crypto"))
    for name in ("EVP_aes_256_gcm", "EVP_CIPHER_CTX_new"):
        getattr(library, name).restype = ctypes.c_void_p
    return library


def packed_pages(contents: bytes, check: int | None = None) -> bytes:
    """The payload of a frame C."""
    into = ctypes.create_string_buffer(len(contents) + 4096)
    size = ctypes.c_size_t(len(into))
    got = _zstd().ZSTD_compress(into, size, contents, ctypes.c_size_t(len(contents)), 1)
    return struct.pack(">I", crc32c(contents) if check is None else check) + into.raw[:got]


def unpacked_pages(payload: bytes, pages: int) -> bytes:
    """The contents that a frame C has. Fails when the checksum or the size is wrong."""
    into = ctypes.create_string_buffer(pages * PAGE)
    sent = payload[4:]
    got = _zstd().ZSTD_decompress(into, ctypes.c_size_t(len(into)), sent, ctypes.c_size_t(len(sent)))
    assert got == pages * PAGE and struct.pack(">I", crc32c(into.raw)) == payload[:4]
    return into.raw


class Seal:
    """One direction of a connection; frames in their order."""

    def __init__(self, key: bytes, connection: int, to_source: bool = False) -> None:
        self.key, self.count = key, 0
        self._which = connection << 2 | to_source << 1

    def frame(self, header: bytes, payload: bytes) -> bytes:
        """A frame as it goes over the wire."""
        sealed = b"".join(self._half(0, header))
        if payload:
            contents, tag = self._half(1, payload)
            sealed += tag + contents
        self.count += 1
        return sealed

    def header(self, sealed: bytes) -> bytes:
        """The next frame's header."""
        header, tag = sealed[: HEADER.size], sealed[HEADER.size :]
        self.count += 1
        return self._opened(0, header, tag)

    def payload(self, tag: bytes, sealed: bytes) -> bytes:
        """The payload of that frame."""
        return self._opened(1, sealed, tag)

    def _half(self, half: int, data: bytes, tag: bytes = b"", number: int | None = None) -> tuple[bytes, bytes]:
        library, done = _crypto(), ctypes.c_int()
        nonce = struct.pack(">IQ", self._which | half, self.count if number is None else number)
        into, found = ctypes.create_string_buffer(len(data)), ctypes.create_string_buffer(TAG)
        context = ctypes.c_void_p(library.EVP_CIPHER_CTX_new())
        try:
            cipher = ctypes.c_void_p(library.EVP_aes_256_gcm())
            assert library.EVP_CipherInit_ex(context, cipher, None, self.key, nonce, not tag) == 1
            assert library.EVP_CipherUpdate(context, into, ctypes.byref(done), data, len(data)) == 1
            if tag:
                assert library.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, TAG, tag) == 1
            assert library.EVP_CipherFinal_ex(context, found, ctypes.byref(done)) == 1, "the tag is wrong"
            assert tag or library.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, TAG, found) == 1
        finally:
            library.EVP_CIPHER_CTX_free(context)
        return into.raw, found.raw

    def _opened(self, half: int, data: bytes, tag: bytes) -> bytes:
        return self._half(half, data, tag, self.count - 1)[0]
