"""`wherry image`: images that nodes of kind vm boot from."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.cli.output import Output, age, emit, say, table
from wherry.client import Client, images
from wherry.model.adapters import USUAL_ADAPTERS
from wherry.model.records import Image

app = App(name="image", help="Images: kernels and files that nodes of kind vm boot from.")


@app.command
def build(
    name: str = "default",
    /,
    *,
    program: Annotated[tuple[Path, ...], Parameter(name="--program")] = (),
    detach: bool = False,
    output: Output = "text",
) -> None:
    """Build an image, or build it anew, from Debian's kernel and this machine's MPI. Needs root.

    A job's program need not be in the image: it is copied to the nodes, with its libraries, when the job starts.

    Parameters
    ----------
    name
        The image; nodes use `default` unless their cluster file names another.
    program
        A program or directory to include, with the libraries that it needs. May be repeated.
    detach
        Do not wait: print the operation.
    """
    paths = [os.path.abspath(path) for path in program]
    with Client() as client:
        operation = client.build_image(name, paths)
        if detach:
            emit(output, "operation", operation, lambda: print(operation.id))
            return
        result: dict[str, Any] = client.wait(operation.id, say).result or {}
    made = Image.model_validate(result["image"])
    text = f"image {made.name} is built: kernel {made.kernel}, {' and '.join(made.mpi) or 'no MPI'}."
    emit(output, "image", result, lambda: print(text))


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the images."""
    found = images()
    rows = [(i.name, i.kernel, ", ".join(i.mpi), format_size(i.bytes), age(i.built), i.digest[:12]) for i in found]
    header = ("IMAGE", "KERNEL", "MPI", "SIZE", "AGE", "DIGEST")
    empty = "There is no image. Next: wherry image build"
    emit(output, "images", {"images": found}, lambda: table(header, rows, empty))


@app.command
def show(name: str = "default", /, *, output: Output = "text") -> None:
    """Show an image, and the packages and programs in it.

    Parameters
    ----------
    name
        The image.
    """
    known = {image.name: image for image in images()}
    if name not in known:
        why = f"known: {', '.join(known)}" if known else "none was made on this machine yet"
        what = f"there is no image {name!r} for virtual machines"
        raise Refused(Code.NOT_FOUND, what, why, f"wherry image build {shlex.quote(name)}")
    image = known[name]
    rows: list[tuple[str, object]] = [
        ("digest", image.digest),
        ("built", f"{age(image.built)} ago"),
        ("size", format_size(image.bytes)),
        ("kernel", image.kernel),
        ("MPI", ", ".join(image.mpi) or "none"),
        ("adapters", ", ".join(getattr(image, "adapters", USUAL_ADAPTERS))),
        ("programs", ", ".join(image.programs) or "none"),
        *sorted(image.packages.items()),
    ]
    emit(output, "image", {"image": image}, lambda: table(("IMAGE", name), rows, ""))


@app.command
def remove(name: str, /, *, output: Output = "text") -> None:
    """Remove an image. Needs root.

    Parameters
    ----------
    name
        The image.
    """
    with Client() as client:
        removed = client.remove_image(name)
    data = {"image": removed}
    emit(output, "image", data, lambda: print(f"image {name} is removed ({format_size(removed.bytes)})."))
