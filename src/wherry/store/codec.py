"""Records to JSON text and back.

Invariants: `load(kind, dump(record)) == record`; the output of `dump` can be read, as one row that cannot would break
every list. So bytes of a name that is not UTF-8 (halves of surrogate pairs) become question marks. Specs refuse sizes
and durations without a unit, so `dump` adds units to sizes and durations that a spec holds as numbers.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel

from wherry.model.spec.base import Spec
from wherry.model.spec.cluster import PinSpec

_SECONDS = dict.fromkeys(("latency", "jitter", "lease", "time", "leave", "ahead"), "{:.9f}s")
_UNITS = {"memory": "{:d}B", "tmp": "{:d}B", "bandwidth": "{:d}bit/s", **_SECONDS}

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def dump(record: BaseModel) -> str:
    """JSON text of a record or spec."""
    data = record.model_dump(mode="json")
    _give_units(record, data)
    text = json.dumps(data, separators=(",", ":"))
    if "\\ud" in text:  # a surrogate: of a pair, if it is a letter
        data = json.loads(json.dumps(data, ensure_ascii=False).encode(errors="replace"))
        text = json.dumps(data, separators=(",", ":"))
    return text


def load(kind: type[AnyModel], text: str) -> AnyModel:
    """The record that `dump` wrote."""
    return kind.model_validate_json(text)


def _give_units(value: Any, data: Any) -> None:
    if isinstance(value, tuple | list):
        for item, part in zip(value, data, strict=True):
            _give_units(item, part)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            item = getattr(value, name)
            measured = isinstance(value, Spec) and not isinstance(value, PinSpec)  # its memory is a NUMA node
            if measured and name in _UNITS and isinstance(item, int | float):
                data[name] = _UNITS[name].format(item)
            else:
                _give_units(item, data[name])
