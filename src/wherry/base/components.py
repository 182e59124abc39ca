"""The door for components: packages with commands, routes, requests and studies of their own (docs/design/0035).

A component is a package with a module `component`, in which `COMPONENT` lists its parts. Each part is a place, `MODULE`
or `MODULE:NAME`, that is imported by the side that uses it, when it uses it.

Invariant: all else here neither imports nor names a component, and works without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

PACKAGES = ("wherry_tiles",)
"""The packages that are components where they are installed. Tried one by one, as a list of all that is installed
takes as long as a short command."""


class Command(NamedTuple):
    """A command of the command line: its name, its place (a cyclopts App or a function), and one line of help."""

    name: str
    place: str
    help: str


@dataclass(frozen=True)
class Component:
    """The parts of a component; it lacks the empty ones. `name` is also its key in `wherry status -o json`."""

    name: str
    commands: tuple[Command, ...] = ()
    status: str = ""
    """Its lines of `wherry status`: a module like `wherry.cli.status.Shown`."""
    requests: str = ""
    """Requests of the Python client: a `wherry.client.requests.Requests`, whose methods become those of `Client`."""
    routes: str = ""
    """A FastAPI router, below /v1."""
    rights: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Method and path of each route: its permitted callers, a name of `wherry.service.rest.authorization.Access`."""
    events: tuple[str, ...] = ()
    """First words of kinds of its events that every account may see."""
    service: str = ""
    """Its part in the daemon of an instance: a module like `wherry.service.component.ServicePart`."""
    tasks: tuple[str, ...] = ()
    """Threads of the daemon: classes of `wherry.service.periodic.PeriodicTask`, made with the service's context."""
    studies: str = ""
    """A tuple of `wherry.lab.study.experiment.Study` classes."""


@cache
def installed() -> tuple[Component, ...]:
    """The components that are installed, in the order of PACKAGES."""
    return tuple(_found())


def _found() -> Iterator[Component]:
    for package in PACKAGES:
        try:
            yield import_module(f"{package}.component").COMPONENT
        except ModuleNotFoundError as error:
            if error.name != package:  # it is there, and lacks something
                raise


def load(place: str) -> Any:
    """The object at a place."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def parts(kind: str) -> list[tuple[str, Any]]:
    """The names of the components that bring a part of this kind, a field of `Component`, each with the part."""
    places = ((component.name, getattr(component, kind)) for component in installed())
    return [(name, load(place)) for name, place in places if place]
