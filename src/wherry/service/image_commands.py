"""The commands on images of virtual machines.

Invariant: all clusters of the machine share the images, so only root changes them, and one change is made at a time.
"""

from __future__ import annotations

from typing import Any

from wherry.base.errors import Code, Refused
from wherry.model.records import Image, Operation
from wherry.node.vm.image import build as image_build
from wherry.node.vm.image import catalog as image_catalog
from wherry.service.claims import IMAGES, Claims
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.task import Task

_SHARED = "an image, which all clusters share,"


class ImageCommands:
    """The commands of one peer on images."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context = context
        self._peer = peer

    def all(self) -> list[Image]:
        """All images, by name."""
        return image_catalog.list_images()

    def show(self, name: str) -> Image:
        """One image. NOT_FOUND."""
        return image_catalog.read_image(name)

    def build(self, name: str, programs: tuple[str, ...]) -> Operation:
        """Builds the image, or builds it anew. `programs` are absolute paths on this machine."""
        self._peer.require(0, _SHARED)
        image_build.check(name, programs)

        def body(task: Task) -> dict[str, Any]:
            made = image_build.build(name, programs, task.progress, task.check)
            self._context.store.add_event("image.build", name, f"image {name} is built, kernel {made.kernel}")
            return {"image": made.model_dump(mode="json")}

        # One at a time: builds share the kernel.
        return self._context.operations.start("image build", name, body, uid=self._peer.uid, exclusive=[IMAGES])

    def remove(self, name: str) -> Image:
        """Removes the image and returns its record. WRONG_STATE while an image is being built. Running machines have
        their image in memory and are not affected."""
        self._peer.require(0, _SHARED)

        def remove(_record: Image) -> None:
            image_catalog.take_out(name)

        record = image_catalog.read_image(name)
        if not self._context.operations.if_unclaimed(Claims.of(exclusive=[IMAGES]), lambda: record, remove):
            remedy = "repeat the command when the build has ended (wherry op list --running)"
            raise Refused(Code.WRONG_STATE, f"image {name} cannot be removed now", "an image is being built", remedy)
        image_catalog.delete_taken_out(name)
        self._context.store.add_event("image.remove", name, f"image {name} is removed")
        return record
