"""Values of options and arguments, checked before the daemon is asked: an error names the option as it was typed.

Models take most of a command's time to import, so their types are given by name and imported for values that are given.
"""

from __future__ import annotations

from typing import Any

from wherry.base.components import load
from wherry.base.errors import Code, Refused

_LONGEST_TEXT = 64
"""Characters of `spec.base:ShortText`, which most values are."""


def checked(option: str, kind: str, value: Any, command: str, typed: str = "") -> Any:
    """The value, perhaps `typed` otherwise, as `kind`, an annotated type `MODULE:NAME` of `wherry.model`, or of a
    component with its whole path; None stays. The error USAGE has the values that the option of `command` takes."""
    if value is None or kind == "spec.base:ShortText" and isinstance(value, str) and 1 <= len(value) <= _LONGEST_TEXT:
        return value
    from pydantic import TypeAdapter, ValidationError

    from wherry.model.spec.explain import explain

    try:
        return TypeAdapter(load(kind if kind.startswith("wherry") else f"wherry.model.{kind}")).validate_python(value)
    except ValidationError as error:
        why = explain(error.errors(include_url=False)[0])
        given = typed or ("''" if value == "" else " ".join(value) if isinstance(value, tuple) else value)
        raise Refused(Code.USAGE, f"{option} {given} is not valid", why, f"{command} --help") from None
