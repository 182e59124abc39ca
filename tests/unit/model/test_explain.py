"""Errors of pydantic reach users in our words: key or option, what was given, what is allowed."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from properties import examples
from wherry.base.components import parts
from wherry.base.errors import Code, Refused
from wherry.cli.options import checked
from wherry.model.balance import Measured
from wherry.model.migration_parameters import Downtime, Rounds
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.explain import EXPLAINED, explain
from wherry.model.spec.fabric import Bandwidth, DirectionSpec, FabricSpec
from wherry.model.spec.parse import parse
from wherry.service.rest import balance, clusters, hosts, images, jobs, links, operations
from wherry.service.rest.dependencies import Body

FOREIGN = ("Input should", "should be a valid", "should have", "Field required", "Value error", "unable to parse")
"""Words of pydantic's texts, and never of ours."""
RAISED = {
    # kind of schema: the errors that pydantic raises for it
    "model": {"model_type", "model_attributes_type"},
    "model-fields": {"model_type", "model_attributes_type", "missing", "extra_forbidden", "invalid_key"},
    "int": {"int_type", "int_parsing", "int_parsing_size", "int_from_float", "finite_number"},
    "float": {"float_type", "float_parsing"},
    "bool": {"bool_type", "bool_parsing"},
    "str": {"string_type", "string_unicode"},
    "bytes": {"bytes_type", "bytes_invalid_encoding", "base64_decode"},
    "dict": {"dict_type", "mapping_type"},
    "list": {"list_type"},
    "tuple": {"tuple_type"},
    "literal": {"literal_error"},
    "enum": {"enum"},
    "function-plain": {"value_error"},
    "function-before": {"value_error"},
    "function-after": {"value_error"},
    "function-wrap": {"value_error"},
}
SILENT = {
    "any", "nullable", "default", "model-field", "tagged-union", "definitions", "definition-ref", "url", "path",
    "lax-or-strict", "json-or-python", "is-instance", "chain", "union", "function", "no-info", "with-info", "format",
    "to-string", "none", "custom-error",
}  # fmt: skip
"""Kinds that raise nothing of their own: the kinds in them do. `lax-or-strict` is a path, of which text is one."""
BOUNDS = {
    "gt": "greater_than", "ge": "greater_than_equal", "lt": "less_than", "le": "less_than_equal",
    "pattern": "string_pattern_mismatch",
}  # fmt: skip
LENGTHS = {"str": "string_too_", "bytes": "bytes_too_", "list": "too_", "tuple": "too_", "dict": "too_"}


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas within one."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for key, part in schema.items():
            if key not in ("metadata", "serialization", "ref", "default"):
                yield from schemas(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from schemas(part)


def parameters() -> Iterator[Any]:
    """The types of all parameters of routes that are not bodies or made by the service."""
    ours = (module.router for module in (balance, clusters, hosts, images, jobs, links, operations))
    for router in (*ours, *(router for _, router in parts("routes"))):
        for route in (route for route in router.routes if isinstance(route, APIRoute)):
            hints = typing.get_type_hints(inspect.unwrap(route.endpoint), include_extras=True)
            hints.pop("return", None)
            yield from (hint for hint in hints.values() if "Depends" not in str(hint) and "Body" not in str(hint))


def bodies(base: type[BaseModel] = Body) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from bodies(kind)


def raised() -> set[str]:
    """The types of errors that our models and routes can raise."""
    found = {"value_error", "json_invalid", "missing"}
    kinds = [ClusterSpec, FabricSpec, DirectionSpec, *bodies(), *parameters()]
    assert len(kinds) > 20
    for schema in (part for kind in kinds for part in schemas(TypeAdapter(kind).core_schema)):
        kind = schema["type"]
        assert kind in RAISED or kind in SILENT, f"what does a schema of kind {kind} raise?"
        found |= RAISED.get(kind, set())
        found |= {error for bound, error in BOUNDS.items() if schema.get(bound) is not None}
        found |= {LENGTHS[kind] + way for way in ("short", "long") if schema.get(_LENGTH[way]) is not None}
    return found


_LENGTH = {"short": "min_length", "long": "max_length"}


def test_every_error_that_models_raise_has_a_sentence() -> None:
    assert raised() <= EXPLAINED


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (Rounds, -3, "-3 is too small: at least 0"),
        (Rounds, 101, "101 is too large: at most 100"),
        (Rounds, 2.5, "2.5 is not a whole number"),
        (Rounds, "many", "'many' is not a whole number"),
        (Rounds, None, "an empty value is not a whole number"),
        (Rounds, [1], "a list is not a whole number"),
        (Rounds, math.inf, "inf is not a finite number"),
        (Rounds, "1" * 5000, "the number has too many digits"),
        (Rounds, 16**400, "a number of more than 30 digits is too large: at most 100"),
        (Measured, math.nan, "nan is not a number"),
        (Measured, "nan", "nan is not a number"),
        (Measured, 0, "0 is too small: more than 0"),
        (Downtime, "0s", "'0s' is too small: more than 0"),
        (Bandwidth, "fast", "'fast' is not a rate; write it as 100Mbit/s"),
        (bool, "perhaps", "'perhaps' is not true or false"),
        (str, 4, "4 is not text"),
        (dict[str, int], "x", "'x' is not a mapping of keys to values"),
        (list[int], {"a": 1}, "a mapping is not a list"),
        (typing.Literal["a", "b"], "c", "'c' is not allowed: write 'a' or 'b'"),
    ],
)
def test_sentence(kind: Any, value: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert explain(caught.value.errors()[0], "key").startswith(f"key: {sentence}")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from([ClusterSpec, FabricSpec, DirectionSpec]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.dictionaries(st.sampled_from(list(kind.model_fields)), values))
    )
)
def test_no_words_of_the_library_reach_users(case: tuple[Any, dict[str, Any]]) -> None:
    kind, data = case
    for command in ("", "wherry x"):
        try:
            parse(kind, data, "FILE", command)
        except Refused as error:
            assert not any(words in error.why for words in FOREIGN), error.why


def test_options_are_named_as_they_were_typed() -> None:
    with pytest.raises(Refused) as caught:
        checked("--max-rounds", "migration_parameters:Rounds", -3, "wherry move")
    assert caught.value.code == Code.USAGE and caught.value.what == "--max-rounds -3 is not valid"
    assert (caught.value.why, caught.value.next) == ("-3 is too small: at least 0", "wherry move --help")
    assert checked("--max-rounds", "migration_parameters:Rounds", None, "wherry move") is None
    assert checked("--bandwidth", "spec.fabric:Bandwidth", "5Mbit/s", "wherry move") == 5_000_000
    for figures, words in (({"latency": "x"}, "--latency: 'x' is"), ({"latency": "99s"}, "--latency: 99s is more")):
        with pytest.raises(Refused) as caught:
            parse(DirectionSpec, figures, "the change", "wherry site link set")
        assert caught.value.why.startswith(words)


def test_both_forms_of_pinned_are_explained_once() -> None:
    for pinned, words in (("x", "pinned: 'x' is not true or false"), (["x"], "pinned.0: 'x' is not a whole number")):
        with pytest.raises(Refused) as caught:
            parse(ClusterSpec, {"name": "x", "nodes": 1, "pinned": pinned}, "FILE")
        assert caught.value.why == words


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"node": "x-0", "host": "a1", "max_rounds": -3}, "max_rounds: -3 is too small: at least 0"),
        ({"node": "x-0"}, "host: it is missing"),
        ({"node": "x-0", "host": "a1", "hst": 1}, "hst: it is unknown"),
        ({"node": "x-0", "host": "a1", "bandwidth": "fast"}, "--bandwidth: 'fast' is not a rate"),
        (["x-0"], "body: a list is not a mapping of keys to values"),
    ],
)
def test_requests_are_explained_alike(http: httpx.Client, body: Any, why: str) -> None:
    answer = http.post("/v1/moves", json=body)
    assert answer.status_code == 422 and answer.json()["code"] == "USAGE"
    assert answer.json()["why"].startswith(why) and "docs/" not in answer.json()["next"]
