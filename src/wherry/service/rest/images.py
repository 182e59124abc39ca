"""Routes of the images of virtual machines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from wherry.model.objects import Image
from wherry.service.images import Images
from wherry.service.rest.common import Body, TheCell, ThePeer, accepted

router = APIRouter(tags=["images"])


class ImageBody(Body):
    """`programs`: absolute paths of programs and directories that the image takes, with the libraries they need."""

    programs: tuple[str, ...] = ()


def _images(context: TheCell, peer: ThePeer) -> Images:
    return Images(context, peer)


TheImages = Annotated[Images, Depends(_images)]


@router.get("/images")
def list_images(images: TheImages) -> list[Image]:
    """By name."""
    return images.all()


@router.get("/images/{name}")
def show_image(name: str, images: TheImages) -> Image:
    """One image."""
    return images.show(name)


@router.put("/images/{name}", status_code=202)
def build_image(name: str, body: ImageBody, images: TheImages) -> JSONResponse:
    """Makes the image out of this machine's packages and files, or makes it anew."""
    return accepted(images.build(name, body.programs))


@router.delete("/images/{name}")
def remove_image(name: str, images: TheImages) -> Image:
    """Removes the image."""
    return images.remove(name)
