"""Parses YAML or JSON into a spec. Errors name the key, the reason, and the nearest known key."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from wherry.base.errors import Code, Refused
from wherry.model.spec.base import Spec, nearest
from wherry.model.spec.cluster import TAGS
from wherry.model.spec.explain import explain

AnySpec = TypeVar("AnySpec", bound=Spec)
_MAX_LISTED = 6
"""Errors of one spec that are reported."""


def parse(kind: type[AnySpec], data: Any, source: str, command: str = "") -> AnySpec:
    """`data` (from YAML or JSON) as a spec. Refused INVALID_FILE names key, reason, and the nearest known key.

    With `command`, whose options are the data, the error is USAGE.
    """
    if not isinstance(data, dict):
        raise Refused(
            Code.INVALID_FILE,
            f"{source} is not a mapping of keys to values",
            "",
            "write a line for each key, such as: name: hello",
        )
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        code, remedy = (Code.USAGE, f"{command} --help") if command else (Code.INVALID_FILE, "correct the file")
        found = error.errors(include_url=False)
        more = [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
        why = "; ".join([*(_explain(kind, e, "--" if command else "") for e in found[:_MAX_LISTED]), *more])
        raise Refused(code, f"{source} is not valid", why, remedy) from None


def _explain(kind: type[BaseModel], error: Any, dashes: str) -> str:
    """The sentence for an error. `dashes` stand before keys that are options."""
    path = [part for part in error["loc"] if part not in TAGS]
    where = dashes + ".".join(map(str, path)).replace("_", "-" if dashes else "_") if path else ""
    if error["type"] == "extra_forbidden":
        model: Any = kind
        for part in path[:-1]:
            if isinstance(part, str) and part in getattr(model, "model_fields", {}):
                model = _inner(model.model_fields[part].annotation)
        known = list(getattr(model, "model_fields", {}))
        return f"unknown key {where!r}{nearest(str(path[-1]), known)}"
    text = explain(error, where)
    return dashes + text if not where and text.partition(":")[0] in kind.model_fields else text


def _inner(annotation: Any) -> Any:
    """The first model in an annotation; the annotation itself when it has none."""
    for argument in get_args(annotation):
        found = _inner(argument)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return annotation


def parse_yaml(kind: type[AnySpec], text: str, source: str) -> AnySpec:
    """A spec from YAML text. Refused as by `load_yaml` and `parse`."""
    return parse(kind, load_yaml(text, source), source)


def load_yaml(text: str, source: str) -> Any:
    """The data of YAML text. Refused INVALID_FILE with the line when it is not YAML, has a key twice, or is more than
    any spec."""
    try:
        return yaml.load(text, _Strict)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:  # the latter: an impossible date
        what = f"{source} is more than a spec" if isinstance(error, _TooMuchError) else f"{source} is not YAML"
        raise Refused(Code.INVALID_FILE, what, " ".join(str(error).split()), "correct the file") from None


MAX_VALUES, MAX_DEPTH, MAX_CHARACTERS = 50_000, 32, 4096
"""Bounds of a YAML text: its values, where the value of an alias counts each time; their nesting; the characters of
one of them."""


class _TooMuchError(yaml.YAMLError):
    """A bound is exceeded."""


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a key given twice. Its work is bounded, and so is the work of a visitor of the
    data."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values, self._depth = 0, 0
        self._sizes: dict[int, int] = {}
        """By node that is complete: how many values it is."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        line, before = self.peek_event().start_mark.line + 1, self._values
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _TooMuchError(f"values are nested more than {MAX_DEPTH} deep (line {line})")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise _TooMuchError(f"a value contains itself (line {line})")
        self._values += self._sizes[id(node)] if is_alias else 1
        self._sizes[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            raise _TooMuchError(f"it has more than {MAX_VALUES} values, aliases counted (line {line})")
        if isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_CHARACTERS:
            raise _TooMuchError(f"a value has more than {MAX_CHARACTERS} characters (line {line})")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is not a plain word (line {key.start_mark.line + 1})")
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} is given twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
        return super().construct_mapping(node, deep)
