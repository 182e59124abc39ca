"""Images that nodes' virtual machines boot from.

An image is a directory below IMAGES, which all instances of a machine share:

    NAME/kernel        an uncompressed Linux (vmlinux), which QEMU and Xen enter by its PVH note
    NAME/initrd.img    the RAM disk: wherry-guest, kernel modules, and the root as a squashfs
    NAME/image.json    the record `Image`

Invariant: a directory with an image's name is complete; it is created under another name and renamed. Images are built
and removed under a file lock, as an operation's claim excludes only others of its own instance.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from wherry.base.errors import Code, Refused
from wherry.base.ids import new_id
from wherry.base.paths import images_directory
from wherry.model.records import AGENT_VERSION, Image

DEFAULT = "default"


@dataclass(frozen=True)
class VmImage:
    """The files of an image. `digest` covers their content."""

    kernel: Path
    initrd: Path
    name: str
    digest: str


def find_image(name: str = DEFAULT) -> VmImage:
    """The image of that name. NOT_FOUND with the command that builds it, also when its agent speaks another version of
    the protocol."""
    record = read_image(name)
    if record.agent != AGENT_VERSION:
        what = f"the image {name!r} was made by another version of Wherry"
        why = f"its agent speaks version {record.agent} of the protocol, this one version {AGENT_VERSION}"
        words = "" if name == DEFAULT else f" {name}"
        raise Refused(Code.NOT_FOUND, what, why, f"wherry image build{words}")
    directory = images_directory() / name
    return VmImage(directory / "kernel", directory / "initrd.img", name, record.digest)


def read_image(name: str) -> Image:
    """The record of an image. NOT_FOUND."""
    try:
        return Image.model_validate_json((images_directory() / name / "image.json").read_text())
    except (OSError, ValueError):  # no such file, no record, no name of a file
        known = ", ".join(image.name for image in list_images())
        remedy = "wherry image build" if name == DEFAULT else f"wherry image build {name}"
        why = f"known: {known}" if known else "none was made on this machine yet"
        raise Refused(Code.NOT_FOUND, f"there is no image {name!r} for virtual machines", why, remedy) from None


def list_images() -> list[Image]:
    """All images, sorted by name."""
    found = []
    for path in sorted(images_directory().glob("[!.]*/image.json")):
        try:
            found.append(Image.model_validate_json(path.read_text()))
        except (OSError, ValidationError):
            continue  # of another version, or being removed
    return found


@contextmanager
def exclusive() -> Iterator[None]:
    """Holds the lock of IMAGES, whose file is never removed. WRONG_STATE when another instance holds it."""
    with open(images_directory() / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what, why = "images cannot be changed now", "another instance on this machine builds or removes one"
            raise Refused(Code.WRONG_STATE, what, why, "repeat the command in some minutes") from None
        yield


def remove_image(name: str) -> None:
    """Removes an image. Running machines are not affected: they have it in memory. NOT_FOUND."""
    take_out(name)
    delete_taken_out(name)


def take_out(name: str) -> None:
    """Takes an image out of the catalogue, which takes no time; `delete_taken_out` deletes its files. NOT_FOUND."""
    read_image(name)
    with exclusive():
        (images_directory() / name).rename(images_directory() / new_id(f".{name}.removed"))


def delete_taken_out(name: str) -> None:
    """Deletes the files of an image that was taken out, and the leftovers of killed processes from earlier ones."""
    for doomed in images_directory().glob(f".{name}.removed*"):
        shutil.rmtree(doomed, ignore_errors=True)
