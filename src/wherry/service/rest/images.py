"""Routes of the images of virtual machines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from wherry.model.records import Image
from wherry.service.image_commands import ImageCommands
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep, accepted

router = APIRouter(tags=["images"])


class ImageBody(Body):
    """`programs`: absolute paths of programs and directories to include, with the libraries that they need."""

    programs: tuple[str, ...] = ()


def _images(context: ContextDep, peer: PeerDep) -> ImageCommands:
    return ImageCommands(context, peer)


ImagesDep = Annotated[ImageCommands, Depends(_images)]


@router.get("/images")
def list_images(images: ImagesDep) -> list[Image]:
    """By name."""
    return images.all()


@router.get("/images/{name}")
def show_image(name: str, images: ImagesDep) -> Image:
    """One image."""
    return images.show(name)


@router.put("/images/{name}", status_code=202)
def build_image(name: str, body: ImageBody, images: ImagesDep) -> JSONResponse:
    """Builds the image, or builds it anew, from packages and files of this machine."""
    return accepted(images.build(name, body.programs))


@router.delete("/images/{name}")
def remove_image(name: str, images: ImagesDep) -> Image:
    """Removes the image. WRONG_STATE while an image is being built."""
    return images.remove(name)
