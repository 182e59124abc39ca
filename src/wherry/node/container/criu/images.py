"""Names of open files in CRIU's images (https://criu.org/Images), given anew so that each can be told from the others.

An image is two magic numbers of 32 bits, then records: a length of 32 bits and a message. What a message has beside the
fields below is kept as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from wherry.base.errors import Code, Failed
from wherry.node.container.criu.rpc import build

_Of = TypeVar("_Of")
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


def give_names(images: Path, wanted: Mapping[tuple[int, int], _Of]) -> dict[str, _Of]:
    """Gives the file behind each (process, descriptor) a name of its own; by what CRIU then calls it.

    Descriptors of one description share a name. Failed when the images do not tell of one of them.
    """
    ids = {_id(images, process, number): one for (process, number), one in wanted.items()}
    given: dict[str, _Of] = {}
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
    """What the images call the file of a descriptor."""
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
