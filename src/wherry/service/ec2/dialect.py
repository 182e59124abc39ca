"""Requests and answers in the words of EC2's Query API, along botocore's service model.

Invariants: each parameter of a request is in the model, once, of its type, and all its characters are XML's; depth is
bounded by the model, lists by 1000 members, a form by 4000 fields.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape

from wherry.service.ec2.errors import Ec2Error, invalid

MOST_MEMBERS, _MOST_FIELDS, _LONGEST_NAME = 1000, 4000, 256
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_INDEX = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
Words = dict[str, Any]
"""A structure of the model: its members by name."""


@cache
def model() -> ServiceModel:
    """EC2's. It takes a fifth of a second and 40 MiB, so it is read by the first request."""
    return ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")


def fields_of(body: bytes) -> dict[str, str]:
    """The fields of a form. MalformedQueryString, InvalidParameterValue; a field that comes twice is refused."""
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), errors="strict",
            max_num_fields=_MOST_FIELDS,
        )  # fmt: skip
    except ValueError:
        raise Ec2Error("MalformedQueryString", "The body is not a form (application/x-www-form-urlencoded)") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Ec2Error("MalformedQueryString", "A parameter is there twice")
    for name, value in pairs:
        if len(name) > _LONGEST_NAME or _NOT_XML.search(name):
            raise Ec2Error("UnknownParameter", "A parameter has no name of EC2's")
        if _NOT_XML.search(value):
            raise invalid(name, "", "It has a character that XML cannot hold")
    return fields


def operation_of(fields: Mapping[str, str]) -> OperationModel:
    """The operation of a request. MissingAction, InvalidAction, NoSuchVersion."""
    action, version = fields.get("Action", ""), fields.get("Version", "")
    if not action:
        raise Ec2Error("MissingAction", "The request has no parameter Action")
    if action not in model().operation_names:
        raise Ec2Error("InvalidAction", f"The action {action[:64]} is not one of EC2's")
    if version != model().api_version:
        raise Ec2Error("NoSuchVersion", f"The requested version ({version[:32]}) is not {model().api_version}")
    return model().operation_model(action)


def words_of(operation: OperationModel, fields: Mapping[str, str]) -> Words:
    """The parameters as the model names them. UnknownParameter, InvalidParameterValue, MissingParameter."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        if name in ("Action", "Version"):
            continue
        at, parts = tree, name.split(".")
        for part in parts[:-1]:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise _unknown(name)
        if parts[-1] in at:
            raise _unknown(name)
        at[parts[-1]] = value
    shape = operation.input_shape
    if shape is None:
        if tree:
            raise _unknown(next(iter(tree)))
        return {}
    return _structure(shape, tree, "")


def _structure(shape: Any, tree: Any, path: str) -> Words:
    if not isinstance(tree, dict):
        raise _unknown(path)
    known = {_wire_name(name, member): (name, member) for name, member in shape.members.items()}
    words = {}
    for wire, below in tree.items():
        here = f"{path}.{wire}" if path else wire
        if wire not in known:
            raise _unknown(here)
        name, member = known[wire]
        words[name] = _value(member, below, here)
    for name in shape.required_members:
        if name not in words:
            missing = _wire_name(name, shape.members[name])
            what = f"{path}.{missing}" if path else missing
            raise Ec2Error("MissingParameter", f"The request must contain the parameter {what}")
    return words


def _value(shape: Shape, below: Any, path: str) -> Any:
    kind: str = shape.type_name
    if kind == "structure":
        return _structure(shape, below, path)
    if kind == "list":
        return _list(shape, below, path)
    if not isinstance(below, str):
        raise _unknown(path)
    if kind in ("integer", "long"):
        if not _INTEGER.fullmatch(below):
            raise invalid(path, below, "It must be a whole number")
        return int(below)
    if kind == "boolean":
        if below.lower() not in ("true", "false"):
            raise invalid(path, below, "It must be true or false")
        return below.lower() == "true"
    if kind == "blob":
        try:
            return base64.b64decode(below, validate=True)
        except (binascii.Error, ValueError):
            raise invalid(path, below, "It must be base64") from None
    return below  # strings, and dates and fractions, which no action of ours takes


def _list(shape: Any, below: Any, path: str) -> list[Any]:
    if below == "":
        return []
    if not isinstance(below, dict):
        raise _unknown(path)
    for index in below:
        if not _INDEX.fullmatch(index) or int(index) > MOST_MEMBERS:
            raise invalid(path, index, f"Members are numbered from 1 to {MOST_MEMBERS}")
    return [_value(shape.member, below[index], f"{path}.{index}") for index in sorted(below, key=int)]


def _wire_name(name: str, shape: Shape) -> str:
    """As botocore's serializer of this protocol has it."""
    given = shape.serialization
    if "queryName" in given:
        return str(given["queryName"])
    wire = str(given.get("name", name))
    return wire[0].upper() + wire[1:]


def _unknown(name: str) -> Ec2Error:
    return Ec2Error("UnknownParameter", f"The parameter {name[:64]} is not recognized")


def answer(operation: OperationModel, words: Words, request: str) -> bytes:
    """The document with `words`; of an action without an answer, that it was done."""
    top = ElementTree.Element(f"{operation.name}Response", {"xmlns": f"{model().metadata['xmlNamespace']}/"})
    ElementTree.SubElement(top, "requestId").text = request
    shape: Any = operation.output_shape
    if shape is None:
        ElementTree.SubElement(top, "return").text = "true"
    else:
        _write_members(top, shape, words)
    return _document(top)


def error_document(error: Ec2Error, request: str) -> bytes:
    """The document of an error."""
    top = ElementTree.Element("Response")
    one = ElementTree.SubElement(ElementTree.SubElement(top, "Errors"), "Error")
    ElementTree.SubElement(one, "Code").text = error.code
    ElementTree.SubElement(one, "Message").text = _NOT_XML.sub("?", error.message)
    ElementTree.SubElement(top, "RequestID").text = request
    return _document(top)


def _write_members(element: ElementTree.Element, shape: Any, words: Words) -> None:
    for name, value in words.items():
        member = shape.members[name]  # a word that the model does not have is an error of ours
        if value is not None:
            _write(ElementTree.SubElement(element, member.serialization.get("name", name)), member, value)


def _write(element: ElementTree.Element, shape: Any, value: Any) -> None:
    kind = shape.type_name
    if kind == "structure":
        _write_members(element, shape, value)
    elif kind == "list":
        for one in value:
            item = shape.member.serialization.get("name", "item")
            _write(ElementTree.SubElement(element, item), shape.member, one)
    elif kind == "timestamp":
        told = datetime.datetime.fromtimestamp(value, datetime.UTC)
        element.text = f"{told:%Y-%m-%dT%H:%M:%S}.{told.microsecond // 1000:03}Z"
    elif kind == "boolean":
        element.text = "true" if value else "false"
    else:
        element.text = _NOT_XML.sub("?", str(value))


def _document(top: ElementTree.Element) -> bytes:
    found: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return found
