"""Values of calls as JSON, by their declared types: records, dataclasses, enumerations, tuples, mappings, secrets.

Pure. Secrets are sent as they are, so nobody else may read the stream. Invariant: `from_plain` returns a
value of the type, or raises Malformed.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from wherry.hostlink.frames import Malformed


def to_plain(value: object) -> Any:
    """A value in the types of JSON. Keys of mappings keep their type: a mapping becomes a list of pairs."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | SecretBytes):
        raw = value if isinstance(value, bytes) else value.get_secret_value()
        return base64.b64encode(raw).decode("ascii")
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return _fields_of(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(each)] for key, each in value.items()]
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(to_plain(each) for each in value)
    raise Malformed(f"a {type(value).__name__} cannot be sent")


def _fields_of(value: object) -> Any:
    """The dump of a record, which Pydantic reads again."""
    if isinstance(value, Mapping):
        return {str(key): _fields_of(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_fields_of(each) for each in value]
    return to_plain(value)


def from_plain(kind: Any, data: Any) -> Any:
    """The value of type `kind` that was sent as `data`. Malformed when it is none."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), data)
    if origin is tuple:
        return _tuple(get_args(kind), data)
    if origin in (list, frozenset):
        (each,) = get_args(kind)
        return origin(from_plain(each, one) for one in _require(data, list))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(get_args(kind), data)
    if kind is None or kind is type(None):
        return None if data is None else _mismatch("nothing", data)
    if not isinstance(kind, type):
        raise Malformed(f"values of {kind} are not sent")
    return _simple(kind, data)


def _simple(kind: type, data: Any) -> Any:
    if issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            return _mismatch(kind.__name__, data)
    if issubclass(kind, BaseModel):
        try:
            return kind.model_validate(_require(data, dict))
        except ValidationError as error:
            raise Malformed(f"no {kind.__name__}: {error.errors(include_input=False)[:3]}") from None
    if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return _record(kind, data)
    if kind in (bytes, SecretBytes):
        try:
            return kind(base64.b64decode(_require(data, str), validate=True))
        except binascii.Error:
            return _mismatch("bytes", "text")
    if kind is float:
        try:
            return float(_require(data, int, float))
        except OverflowError:
            return _mismatch("float", data)
    if kind in (bool, int, str):
        return _require(data, kind)
    raise Malformed(f"values of {kind.__name__} are not sent")


def _record(kind: type, data: Any) -> Any:
    """A dataclass or a named tuple."""
    hints = get_type_hints(kind)
    fields = _require(data if not isinstance(data, list) else dict(zip(hints, data, strict=False)), dict)
    if fields.keys() != hints.keys():
        raise Malformed(f"a {kind.__name__} has {', '.join(hints)}")
    return kind(**{name: from_plain(hint, fields[name]) for name, hint in hints.items()})


def _one_of(kinds: tuple[Any, ...], data: Any) -> Any:
    if data is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return from_plain(kind, data)
            except Malformed:
                continue
    return _mismatch(" or ".join(map(str, kinds)), data)


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    values = _require(data, list)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(from_plain(kinds[0], value) for value in values)
    if len(kinds) != len(values):
        raise Malformed(f"{len(values)} values instead of {len(kinds)}")
    return tuple(from_plain(kind, value) for kind, value in zip(kinds, values, strict=True))


def _mapping(kinds: tuple[Any, ...], data: Any) -> dict[Any, Any]:
    pairs = [_require(pair, list) for pair in _require(data, list)]
    if any(len(pair) != 2 for pair in pairs):
        raise Malformed("a mapping has pairs")
    return {from_plain(kinds[0], key): from_plain(kinds[1], value) for key, value in pairs}


def _require(data: Any, *kinds: type) -> Any:
    """The data, which is of one of these types. A truth value is no number."""
    if not isinstance(data, kinds) or (isinstance(data, bool) and bool not in kinds):
        _mismatch(" or ".join(kind.__name__ for kind in kinds), data)
    return data


def _mismatch(wanted: str, data: Any) -> None:
    raise Malformed(f"{type(data).__name__} instead of {wanted}")
