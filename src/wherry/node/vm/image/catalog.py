"""Images: what the virtual machines of nodes are booted with.

An image is a directory of its own below IMAGES, the same for all instances of a machine:

    NAME/kernel        an uncompressed Linux (vmlinux), which QEMU and Xen enter by its PVH note
    NAME/initrd.img    the RAM disk: wherry-guest, kernel modules, and the root as a squashfs
    NAME/image.json    the record `Image`

Invariant: a directory that has a name is complete; it is made beside and renamed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from wherry.base.errors import Code, Refused
from wherry.model.objects import AGENT_VERSION, Image

DEFAULT = "default"


@dataclass(frozen=True)
class VmImage:
    """What a machine is booted with. `digest` changes whenever a byte of it does."""

    kernel: Path
    initrd: Path
    name: str
    digest: str


def images_directory() -> Path:
    """Where images are kept."""
    return Path(os.environ.get("WHERRY_STATE", "/var/lib/wherry")) / "images"


def find_image(name: str = DEFAULT) -> VmImage:
    """The image of that name. NOT_FOUND with the command that makes it, also for one whose agent nobody can talk to."""
    record = read_image(name)
    if record.agent != AGENT_VERSION:
        what = f"the image {name!r} was made by another version of Wherry"
        why = f"its agent speaks version {record.agent} of the protocol, this one version {AGENT_VERSION}"
        words = "" if name == DEFAULT else f" {name}"
        raise Refused(Code.NOT_FOUND, what, why, f"wherry image build{words}")
    directory = images_directory() / name
    return VmImage(directory / "kernel", directory / "initrd.img", name, record.digest)


def read_image(name: str) -> Image:
    """What is known of an image. NOT_FOUND."""
    try:
        return Image.model_validate_json((images_directory() / name / "image.json").read_text())
    except (OSError, ValidationError):
        known = ", ".join(image.name for image in list_images())
        remedy = "wherry image build" if name == DEFAULT else f"wherry image build {name}"
        why = f"known: {known}" if known else "none was made on this machine yet"
        raise Refused(Code.NOT_FOUND, f"there is no image {name!r} for virtual machines", why, remedy) from None


def list_images() -> list[Image]:
    """Every image, by name."""
    found = []
    for path in sorted(images_directory().glob("[!.]*/image.json")):
        try:
            found.append(Image.model_validate_json(path.read_text()))
        except (OSError, ValidationError):
            continue  # of another version, or just being removed: as good as absent
    return found


def remove_image(name: str) -> None:
    """Removes an image. Machines that run keep what they have in memory. NOT_FOUND."""
    read_image(name)
    doomed = images_directory() / f".{name}.removed"
    shutil.rmtree(doomed, ignore_errors=True)
    (images_directory() / name).rename(doomed)
    shutil.rmtree(doomed)
