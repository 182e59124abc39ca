"""Parses YAML or JSON into a spec. Errors name the key, the reason, and the nearest known key."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from wherry.base.errors import Code, Refused
from wherry.model.spec.base import Spec, nearest
from wherry.model.spec.cluster import NODES_AS_GROUPS, NODES_AS_NUMBER

AnySpec = TypeVar("AnySpec", bound=Spec)


def parse(kind: type[AnySpec], data: Any, source: str, command: str = "") -> AnySpec:
    """`data` (from YAML or JSON) as a spec. Refused INVALID_FILE names key, reason, and the nearest known key.

    With `command`, whose options are the data, the error is USAGE.
    """
    if not isinstance(data, dict):
        raise Refused(Code.INVALID_FILE, f"{source} is not a mapping of keys to values", "", "see examples/")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        code, remedy = (Code.USAGE, f"{command} --help") if command else (Code.INVALID_FILE, "correct the file")
        why = "; ".join(_explain(kind, e) for e in error.errors())
        raise Refused(code, f"{source} is not valid", why, remedy) from None


def _explain(kind: type[BaseModel], error: Any) -> str:
    path = [part for part in error["loc"] if part not in (NODES_AS_NUMBER, NODES_AS_GROUPS)]
    where = ".".join(map(str, path))
    if error["type"] == "extra_forbidden":
        model: Any = kind
        for part in path[:-1]:
            if isinstance(part, str) and part in getattr(model, "model_fields", {}):
                model = _inner(model.model_fields[part].annotation)
        known = list(getattr(model, "model_fields", {}))
        return f"unknown key {where!r}{nearest(str(path[-1]), known)}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _inner(annotation: Any) -> Any:
    """The first model in an annotation; the annotation itself when it has none."""
    for argument in get_args(annotation):
        found = _inner(argument)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return annotation


def parse_yaml(kind: type[AnySpec], text: str, source: str) -> AnySpec:
    """A spec from YAML text. Refused INVALID_FILE with the line when it is not YAML or has a key twice."""
    try:
        data = yaml.load(text, _Strict)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: an impossible date, unbounded nesting
        raise Refused(
            Code.INVALID_FILE, f"{source} is not YAML", " ".join(str(error).split()), "correct the file"
        ) from None
    return parse(kind, data, source)


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is not a plain word (line {key.start_mark.line + 1})")
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} is given twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
        return super().construct_mapping(node, deep)
