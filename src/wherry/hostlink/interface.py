"""The methods of a protocol as calls: which there are, their arguments and results.

A parameter that is a callable is not sent: the caller is called back (`StepMonitor`) or asked whether to continue
(`Check`).
A result that is itself a protocol is an object that stays at the other side, where it has a number.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from wherry.hostlink.frames import Malformed
from wherry.hostlink.values import from_plain, to_plain

StepMonitor = Callable[[str], bool]
Check = Callable[[], None]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call that are sent, and its callbacks, which are not."""

    plain: dict[str, Any]
    monitor: StepMonitor | None = None
    check: Check | None = None


class Method:
    """One method of a protocol."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        self.name = name
        self.result: Any = hints.pop("return")
        signature = inspect.signature(function)
        self._signature = signature.replace(parameters=list(signature.parameters.values())[1:])  # without `self`
        self._hints = hints

    @property
    def returned(self) -> Interface | None:
        """The interface of the object that it returns; None when it returns a value."""
        return Interface(self.result) if getattr(self.result, "_is_protocol", False) else None

    def encode(self, args: tuple[Any, ...], more: Mapping[str, Any]) -> Arguments:
        """The part of these arguments that is sent. TypeError when the method does not take them."""
        bound = self._signature.bind(*args, **more)
        bound.apply_defaults()
        plain, callbacks = dict[str, Any](), dict[str, Any]()
        for name, value in bound.arguments.items():
            if kind := _callback(self._hints[name]):
                callbacks[kind] = value
            else:
                plain[name] = to_plain(value)
        return Arguments(plain, **callbacks)

    def decode(self, plain: Any, monitor: StepMonitor, check: Check) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the method with. Malformed when they are not those of the method."""
        if not isinstance(plain, dict):
            raise Malformed("arguments are an object")
        callbacks = {"monitor": monitor, "check": check}
        wanted = {name for name, hint in self._hints.items() if not _callback(hint)}
        if plain.keys() != wanted:
            raise Malformed(f"the arguments of {self.name} are {', '.join(sorted(wanted)) or 'none'}")
        args, named = list[Any](), dict[str, Any]()
        for name, parameter in self._signature.parameters.items():
            hint = self._hints[name]
            if kind := _callback(hint):
                named[name] = callbacks[kind]
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += from_plain(types.GenericAlias(list, (hint,)), plain[name])
            else:
                named[name] = from_plain(hint, plain[name])
        return tuple(args), named


class Interface:
    """The public methods of a protocol."""

    def __init__(self, protocol: type) -> None:
        self.name = protocol.__name__
        found = inspect.getmembers(protocol, inspect.isfunction)
        self._functions = {name: function for name, function in found if not name.startswith("_")}
        self._methods = dict[str, Method]()

    def method(self, name: str) -> Method:
        """The method of that name. Malformed when there is none."""
        if name not in self._functions:
            raise Malformed(f"{self.name} has no method {name!r}")
        if name not in self._methods:
            self._methods[name] = Method(name, self._functions[name])
        return self._methods[name]

    def __contains__(self, name: str) -> bool:
        return name in self._functions


def _callback(hint: Any) -> str:
    """`monitor` or `check` for a callable; empty for a value."""
    if get_origin(hint) is not collections.abc.Callable:
        return ""
    return "monitor" if get_args(hint)[0] else "check"
