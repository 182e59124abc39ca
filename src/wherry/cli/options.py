"""Values of options and arguments, checked before the daemon is asked: an error names the option as it was typed."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from wherry.base.errors import Code, Refused
from wherry.model.spec.explain import explain


def checked(option: str, kind: Any, value: Any, command: str, typed: str = "") -> Any:
    """The value, perhaps `typed` otherwise, as `kind`, an annotated type; None stays. USAGE says what the option of
    `command` takes."""
    if value is None:
        return None
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        why = explain(error.errors(include_url=False)[0])
        given = typed or ("''" if value == "" else " ".join(value) if isinstance(value, tuple) else value)
        raise Refused(Code.USAGE, f"{option} {given} is not valid", why, f"{command} --help") from None
