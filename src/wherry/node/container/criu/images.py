"""Says in CRIU's images (https://criu.org/Images) how open files are to be opened again.

An image is two magic numbers of 32 bits, then records: a length of 32 bits and a message. Other fields of a message
than those below are preserved.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from wherry.base.errors import Code, Failed
from wherry.node.container.criu.rpc import build

_Value = TypeVar("_Value")
_REGULAR = 1
_CLASSES = build(
    "wherry.criu_images",
    {
        "ids": {"files_id": (2, "u")},
        "fdinfo": {"id": (1, "u"), "fd": (4, "u")},
        "regular": {"name": (6, "s"), "size": (8, "l")},
        "file": {"type": (1, "i"), "id": (2, "u"), "regular": (3, "regular")},
    },
)


def prepare_files(images: Path, wanted: Mapping[tuple[int, int], _Value], shared: Sequence[str]) -> dict[str, _Value]:
    """Gives the file of each (process, descriptor) of `wanted` a unique name, and lets files in the directories
    `shared`, which others may write meanwhile, have any size. Returns the values of `wanted` by CRIU's new key.

    Descriptors of one file description share a name. Failed when the images lack one of them.
    """
    ids = {_id(images, process, number): one for (process, number), one in wanted.items()}
    inside = tuple(f"{directory.rstrip('/')}/" for directory in shared)
    parts = tuple(directory.encode() for directory in inside)
    given: dict[str, _Value] = {}
    image = images / "files.img"
    data, records = image.read_bytes(), []
    for raw in _raw_records(data):
        if ids or any(part in raw for part in parts):
            record = _CLASSES["file"].FromString(raw)
            if record.type == _REGULAR and record.regular.name.startswith(inside):
                record.regular.ClearField("size")
            if record.type == _REGULAR and record.id in ids:
                name = f"wherry-file-{record.id}"
                record.regular.name = f"/{name}"
                given[name] = ids[record.id]
            raw = record.SerializePartialToString()
        records.append(struct.pack("=I", len(raw)) + raw)
    if len(given) < len(ids):
        raise Failed(Code.MOVE_FAILED, "CRIU's images lack a file that is locked", str(image), "the same command again")
    if (written := data[:8] + b"".join(records)) != data:
        image.write_bytes(written)
    return given


def _id(images: Path, process: int, number: int) -> int:
    """The id of a descriptor's file in the images."""
    for ids in _records(images / f"ids-{process}.img", "ids"):
        for entry in _records(images / f"fdinfo-{ids.files_id}.img", "fdinfo"):
            if entry.fd == number:
                return int(entry.id)
    why = f"descriptor {number} of process {process}"
    raise Failed(Code.MOVE_FAILED, "CRIU's images lack a file that is locked", why, "the same command again")


def _records(image: Path, kind: str) -> Iterator[Any]:
    yield from map(_CLASSES[kind].FromString, _raw_records(image.read_bytes()))


def _raw_records(data: bytes) -> Iterator[bytes]:
    at = 8
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length
