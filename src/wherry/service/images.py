"""Images of virtual machines: what a user can ask for.

Invariant: all clusters of the machine share them, so only root changes them.
"""

from __future__ import annotations

from typing import Any

from wherry.model.objects import Image, Operation
from wherry.node.vm.image import build as image_build
from wherry.node.vm.image import catalog as image_catalog
from wherry.service.claims import IMAGES
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.operations import Task

_OURS = "an image, which all clusters share,"


class Images:
    """The acts on images that a peer asks for."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context = context
        self._peer = peer

    def all(self) -> list[Image]:
        """By name."""
        return image_catalog.list_images()

    def show(self, name: str) -> Image:
        """One image. NOT_FOUND."""
        return image_catalog.read_image(name)

    def build(self, name: str, programs: tuple[str, ...]) -> Operation:
        """Makes the image, or makes it anew. `programs` are absolute paths of this machine."""
        self._peer.require(0, _OURS)
        image_build.check(name, programs)

        def body(task: Task) -> dict[str, Any]:
            made = image_build.build(name, programs, task.progress, task.check)
            self._context.store.add_event("image.build", name, f"image {name} is built, kernel {made.kernel}")
            return {"image": made.model_dump(mode="json")}

        # One at a time: they share the kernel.
        return self._context.operations.start("image build", name, body, uid=self._peer.uid, exclusive=[IMAGES])

    def remove(self, name: str) -> Image:
        """Removes the image, and returns what it was. Machines that run keep what they have in memory."""
        self._peer.require(0, _OURS)
        found = image_catalog.read_image(name)
        image_catalog.remove_image(name)
        self._context.store.add_event("image.remove", name, f"image {name} is removed")
        return found
