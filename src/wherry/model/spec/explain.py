"""The fault of a value, in our words: the given value, and the allowed ones. For files, options and REST alike.

Invariant: each type of error that pydantic raises for a spec or a request has a sentence here (a test goes through
them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_NOUNS = {
    "a whole number": ("int_type", "int_parsing", "int_from_float"),
    "a number": ("float_type", "float_parsing"),
    "true or false": ("bool_type", "bool_parsing"),
    "text": ("string_type", "string_unicode", "bytes_type"),
    "base64": ("base64_decode", "bytes_invalid_encoding"),
    "a finite number": ("finite_number",),
    "a mapping of keys to values": ("model_type", "model_attributes_type", "dict_type", "mapping_type"),
    "a list": ("list_type", "tuple_type"),
}
_SENTENCES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "missing": lambda given, c: "it is missing",
    "extra_forbidden": lambda given, c: "it is unknown",
    "invalid_key": lambda given, c: "a key is not text",
    "greater_than": lambda given, c: _bounded(given, "small", f"more than {_number(c['gt'])}"),
    "greater_than_equal": lambda given, c: _bounded(given, "small", f"at least {_number(c['ge'])}"),
    "less_than": lambda given, c: _bounded(given, "large", f"less than {_number(c['lt'])}"),
    "less_than_equal": lambda given, c: _bounded(given, "large", f"at most {_number(c['le'])}"),
    "too_short": lambda given, c: f"it has {c['actual_length']} entries: at least {c['min_length']}",
    "too_long": lambda given, c: f"it has {_length(given, c)} entries: at most {c['max_length']}",
    "string_too_short": lambda given, c: f"{shown(given)} is too short: at least {_characters(c['min_length'])}",
    "string_too_long": lambda given, c: f"{shown(given)} is too long: at most {_characters(c['max_length'])}",
    "bytes_too_long": lambda given, c: f"it is too long: at most {c['max_length']} bytes",
    "string_pattern_mismatch": lambda given, c: f"{shown(given)} is not of the form {c['pattern']}",
    "int_parsing_size": lambda given, c: "the number has too many digits",
    "literal_error": lambda given, c: f"{shown(given)} is not allowed: write {c['expected']}",
    "enum": lambda given, c: f"{shown(given)} is not allowed: write {c['expected']}",
    "value_error": lambda given, c: str(c["error"]),
    "recursion_loop": lambda given, c: "it contains itself",
    "json_invalid": lambda given, c: f"it is not JSON: {c['error']}",
}
_SENTENCES |= {
    kind: (lambda given, c, noun=noun: f"{shown(given)} is not {noun}")  # type: ignore[misc]
    for noun, kinds in _NOUNS.items()
    for kind in kinds
}
EXPLAINED = frozenset(_SENTENCES)
"""The types of pydantic's errors that have a sentence."""


def explain(error: Mapping[str, Any], where: str = "") -> str:
    """One of pydantic's errors as a sentence, behind the key's path or the option's name."""
    sentence = _SENTENCES.get(error["type"])
    text = sentence(error.get("input"), error.get("ctx") or {}) if sentence else error["msg"]
    return f"{where}: {text}" if where else text


def shown(value: Any) -> str:
    """A value of a user, as an error shows it."""
    match value:
        case None:
            return "an empty value"
        case bool():
            return str(value).lower()
        case str():
            return repr(value if len(value) <= 40 else f"{value[:40]}…")
        case int() | float():
            return _number(value)
        case list() | tuple() | set():
            return "a list"
        case _:
            return "a mapping" if isinstance(value, Mapping) else "it"


def _number(value: float) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:  # Python does not print thousands of digits
        return "a number of more than 30 digits"
    return repr(value) if isinstance(value, int) else f"{value:g}"


def _bounded(given: Any, size: str, bound: str) -> str:
    """Comparisons with NaN are false, so pydantic calls it too large or too small."""
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    return "nan is not a number" if math.isnan(number) else f"{shown(given)} is too {size}: {bound}"


def _length(given: Any, context: Mapping[str, Any]) -> str:
    return str(context.get("actual_length") or (len(given) if hasattr(given, "__len__") else "more"))


def _characters(count: int) -> str:
    return f"{count} character{'' if count == 1 else 's'}"
