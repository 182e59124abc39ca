"""Objects at a host, called as if they were here.

    remote(links, "h1", CONTAINERS, ContainerHost).alive(place)

An object that a call made there (the half of a move) ends with the connection, as its agent does. It is made anew, by
the same call, for those of its methods that need nothing of earlier steps; all others raise LostContact.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from wherry.base.errors import Code, LostContact
from wherry.hostlink.frames import Malformed
from wherry.hostlink.interface import Arguments, Interface, Method
from wherry.hostlink.link import HostLink, malformed
from wherry.hostlink.values import from_plain

T = TypeVar("T")
ENDS = frozenset(("close", "drop"))
"""Methods with which an object that a call made is not needed any more."""
_NONE: Mapping[str, Any] = {}


class Links(Protocol):
    """The connections to the hosts."""

    lost: set[str]
    """Hosts that are declared lost: steps that remove something there do nothing."""

    def link(self, host: str) -> HostLink:
        """The open stream to the host's agent. LostContact when it does not answer, or is declared lost."""


def remote(
    links: Links,
    host: str,
    target: str,
    protocol: Callable[..., T],
    needless: Mapping[str, Any] = _NONE,
    anew: frozenset[str] = frozenset(),
) -> T:
    """The object `target` of the agent of a host. Methods of `needless` have these results, and do nothing, for a host
    that is declared lost, as have those of objects that its methods return; of these objects `anew` are the methods
    that need nothing of earlier steps."""
    return cast(T, _Remote(links, host, Interface(cast(type, protocol)), lambda _: target, (needless, anew)))


class _Remote:
    def __init__(
        self,
        links: Links,
        host: str,
        interface: Interface,
        make: Callable[[HostLink], str],
        rules: tuple[Mapping[str, Any], frozenset[str]],
        made: tuple[HostLink, str] | None = None,
        lasting: bool = True,
    ) -> None:
        self._links, self._host, self._interface = links, host, interface
        self._make, self._rules, self._made, self._lasting = make, rules, made, lasting
        self._needless, self._anew = rules
        self._making = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._interface:
            raise AttributeError(name)
        return functools.partial(self._call, self._interface.method(name))

    def _call(self, method: Method, *args: Any, **more: Any) -> Any:
        if self._host in self._links.lost and method.name in self._needless:
            return self._needless[method.name]
        arguments, returned = method.encode(args, more), method.returned
        if returned and self._host in self._links.lost:
            return self._object(returned, method, arguments)
        link = self._links.link(self._host)
        result = link.call(self._target(link, method), method, arguments)
        if method.name in ENDS:
            self._made = None
        if returned:
            return self._object(returned, method, arguments, (link, _number(self._host, result)))
        try:
            return from_plain(method.result, result)
        except Malformed as error:
            raise malformed(self._host, error) from None

    def _target(self, link: HostLink, method: Method) -> str:
        with self._making:
            made = self._made
            if made is None or made[0] is not link:
                if made is not None and not self._lasting and method.name not in self._anew:
                    what = f"host {self._host} did not answer for a while"
                    why = "the call that was begun there has ended with its agent"
                    raise LostContact(Code.UNREACHABLE, what, why, "the same command again")
                made = self._made = link, self._make(link)
            return made[1]

    def _object(
        self, interface: Interface, method: Method, arguments: Arguments, made: tuple[HostLink, str] | None = None
    ) -> _Remote:
        def make(link: HostLink) -> str:
            return _number(self._host, link.call(self._target(link, method), method, arguments))

        return _Remote(self._links, self._host, interface, make, self._rules, made, lasting=False)


def _number(host: str, result: Any) -> str:
    if not isinstance(result, str):
        raise malformed(host, Malformed("an object has a name"))
    return result
