"""Renames open files in CRIU's images (https://criu.org/Images), so that each has a unique name.

An image is two magic numbers of 32 bits, then records: a length of 32 bits and a message. Other fields of a message
than those below are preserved.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
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
        "regular": {"name": (6, "s")},
        "file": {"type": (1, "i"), "id": (2, "u"), "regular": (3, "regular")},
    },
)


def assign_unique_names(images: Path, wanted: Mapping[tuple[int, int], _Value]) -> dict[str, _Value]:
    """Gives the file of each (process, descriptor) a unique name; returns the values of `wanted` by CRIU's new key.

    Descriptors of one file description share a name. Failed when the images lack one of them.
    """
    ids = {_id(images, process, number): one for (process, number), one in wanted.items()}
    given: dict[str, _Value] = {}
    image = images / "files.img"
    head, records = image.read_bytes()[:8], []
    for record in _records(image, "file"):
        if record.type == _REGULAR and record.id in ids:
            name = f"wherry-file-{record.id}"
            record.regular.name = f"/{name}"
            given[name] = ids[record.id]
        data = record.SerializePartialToString()
        records.append(struct.pack("=I", len(data)) + data)
    if len(given) < len(ids):
        raise Failed(Code.MOVE_FAILED, "CRIU's images lack a file that is locked", str(image), "wherry event list")
    image.write_bytes(head + b"".join(records))
    return given


def _id(images: Path, process: int, number: int) -> int:
    """The id of a descriptor's file in the images."""
    for ids in _records(images / f"ids-{process}.img", "ids"):
        for entry in _records(images / f"fdinfo-{ids.files_id}.img", "fdinfo"):
            if entry.fd == number:
                return int(entry.id)
    why = f"descriptor {number} of process {process}"
    raise Failed(Code.MOVE_FAILED, "CRIU's images lack a file that is locked", why, "wherry event list")


def _records(image: Path, kind: str) -> Iterator[Any]:
    data, at = image.read_bytes(), 8
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at)
        yield _CLASSES[kind].FromString(data[at + 4 : at + 4 + length])
        at += 4 + length
