"""The parser of forms, filters and pages: whatever comes is an answer in EC2's words."""

from __future__ import annotations

import time
from urllib.parse import urlencode
from xml.etree import ElementTree

import botocore.session
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.service.ec2.dialect import answer, error_document, fields_of, model, operation_of, words_of
from wherry.service.ec2.errors import Ec2Error
from wherry.service.ec2.filters import filtered, matcher, page, tag_facts

VERSION = "2016-11-15"
NAMES = st.sampled_from(
    ["InstanceId.1", "InstanceId.2", "Filter.1.Name", "Filter.1.Value.1", "Filter.1", "MaxResults", "DryRun", "X", "",
     "InstanceId", "InstanceId.0", "InstanceId.99999", "InstanceId.1.1", "Filter..Name", "NextToken", "Filter.1.Value"]
)  # fmt: skip


def parsed(body: bytes) -> object:
    fields = fields_of(body)
    return words_of(operation_of(fields), fields)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=400))
def test_any_body_is_refused_in_ec2s_words(body: bytes) -> None:
    with pytest.raises(Ec2Error) as caught:
        parsed(body)
    assert ElementTree.fromstring(error_document(caught.value, "id")).findtext("Errors/Error/Code")


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.one_of(NAMES, st.text(max_size=30)), st.text(max_size=30), max_size=8))
def test_any_parameters_are_understood_or_refused(given: dict[str, str]) -> None:
    form = {**given, "Action": "DescribeInstances", "Version": VERSION}
    try:
        words = parsed(urlencode(form, errors="surrogatepass").encode())
    except Ec2Error as error:
        assert error.status == 400
        return
    assert isinstance(words, dict) and words.keys() <= {
        "InstanceIds", "IncludeManagedResources", "DryRun", "Filters", "NextToken", "MaxResults",
    }  # fmt: skip


TEXT = st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\ufffe\uffff"), max_size=30)
TAGS = st.lists(st.fixed_dictionaries({"Key": TEXT, "Value": TEXT}), min_size=1, max_size=4)


@settings(max_examples=examples(100), deadline=None)
@given(TAGS, st.integers(-(2**31), 2**31 - 1), st.booleans(), st.binary(max_size=30))
def test_what_botocore_writes_is_read_as_it_was(tags: object, count: int, dry: bool, key: bytes) -> None:
    for action, words in (
        ("RunInstances", {
            "MinCount": count, "MaxCount": count, "DryRun": dry, "ClientToken": "t",
            "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}], "Placement": {"GroupName": "g"},
        }),
        ("ImportKeyPair", {"KeyName": "k", "PublicKeyMaterial": key}),
        ("DescribeImages", {"Owners": ["self"], "ImageIds": ["a", "b"], "Filters": [{"Name": "n", "Values": ["v"]}]}),
    ):  # fmt: skip
        operation = model().operation_model(action)
        form = create_serializer("ec2").serialize_to_request(words, operation)["body"]
        try:
            assert parsed(urlencode(form).encode()) == words
        except Ec2Error as error:
            assert error.code == "InvalidParameterValue" and "XML" in error.message


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(TEXT, TEXT, max_size=4), st.floats(0, 4e9))
def test_what_is_answered_is_what_botocore_reads(tags: dict[str, str], launched: float) -> None:
    operation = model().operation_model("RunInstances")
    tag_set = [{"Key": key, "Value": value} for key, value in tags.items()]
    instance = {"InstanceId": "i-1", "State": {"Code": 16, "Name": "running"}, "LaunchTime": launched, "Tags": tag_set}
    body = answer(operation, {"ReservationId": "r-1", "Instances": [instance]}, "id")
    read = create_parser("ec2").parse({"status_code": 200, "body": body, "headers": {}}, operation.output_shape)
    assert read["ResponseMetadata"]["RequestId"] == "id"
    (found,) = read["Instances"]
    assert abs(found["LaunchTime"].timestamp() - launched) < 0.0011
    told = {one["Key"]: one.get("Value", "") for one in found["Tags"]}
    assert all(told[key] == value for key, value in tags.items() if key == key.strip() and "\r" not in key + value
               and key.isprintable() and value.isprintable())  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MissingAction"), (b"Action=Fly&Version=2016-11-15", "InvalidAction"), (b"a", "MalformedQueryString"),
        (b"Action=DescribeRegions&Version=2010-01-01", "NoSuchVersion"), (b"\xff=1", "MalformedQueryString"),
        (b"Action=a&Action=b", "MalformedQueryString"), (b"a=%ff", "MalformedQueryString"),
        (b"Action=%00", "InvalidParameterValue"), (b"a=1&" * 5000, "MalformedQueryString"),
        (b"Action=DescribeRegions&Version=2016-11-15&Foo=1", "UnknownParameter"),
        (b"Action=DescribeRegions&Version=2016-11-15&Filter=1", "UnknownParameter"),
        (b"Action=DescribeRegions&Version=2016-11-15&DryRun=perhaps", "InvalidParameterValue"),
        (b"Action=DescribeInstances&Version=2016-11-15&MaxResults=1e3", "InvalidParameterValue"),
        (b"Action=DescribeInstances&Version=2016-11-15&InstanceId.1001=i", "InvalidParameterValue"),
        (b"Action=DescribeInstances&Version=2016-11-15&InstanceId.1=i&InstanceId.1.x=i", "UnknownParameter"),
        (b"Action=RunInstances&Version=2016-11-15&MinCount=1", "MissingParameter"),
        (b"Action=ImportKeyPair&Version=2016-11-15&KeyName=k&PublicKeyMaterial=%21", "InvalidParameterValue"),
    ],
)  # fmt: skip
def test_codes(body: bytes, code: str) -> None:
    with pytest.raises(Ec2Error) as caught:
        parsed(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("pattern", "value", "like"),
    [
        ("a*b", "axxb", True), ("a*b", "ab", True), ("*", "", True), ("a?", "ab", True), ("a?", "a", False),
        (r"a\*", "a*", True), (r"a\*", "ab", False), ("*a*b*", "xaxbx", True), ("*ab*ab", "aab", False),
        ("abc", "abc", True), ("abc", "ABC", False), (".*", "ab", False), ("a*", "a\nb", True),
    ],
)  # fmt: skip
def test_patterns(pattern: str, value: str, like: bool) -> None:
    assert matcher(pattern)(value) is like


def test_no_pattern_takes_long() -> None:
    began = time.process_time()
    assert not matcher("*a" * 127)("a" * 255 + "b")
    assert time.process_time() - began < 1.0


def test_filters() -> None:
    found = [{"name": "x", "site": "a"}, {"name": "y"}]

    def facts(tags: dict[str, str]) -> dict[str, object]:
        return {"n": (tags["name"],), **tag_facts(tags)}

    def kept(*filters: dict[str, object]) -> list[str]:
        return [one["name"] for one in filtered(found, filters, ("n",), facts)]  # type: ignore[arg-type]

    assert kept() == ["x", "y"] and kept({"Name": "n", "Values": ["x", "y"]}) == ["x", "y"]
    assert kept({"Name": "tag:site", "Values": ["a"]}) == kept({"Name": "tag-key", "Values": ["site"]}) == ["x"]
    assert kept({"Name": "n", "Values": ["*"]}, {"Name": "tag:name", "Values": ["y"]}) == ["y"]
    for wrong in ({"Name": "m", "Values": ["x"]}, {"Name": "n"}, {}, {"Name": "tag:", "Values": ["x"]},
                  {"Name": "n", "Values": ["x" * 256]}):  # fmt: skip
        with pytest.raises(Ec2Error) as caught:
            kept(wrong)
        assert caught.value.code == "InvalidParameterValue"
    with pytest.raises(Ec2Error):
        kept(*[{"Name": "n", "Values": ["x"]}] * 51)


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(st.text(max_size=5), max_size=40), st.integers(5, 12))
def test_pages_have_everything_once(found: set[str], size: int) -> None:
    seen: list[str] = []
    token = None
    while True:
        words = {"MaxResults": size, **({"NextToken": token} if token else {})}
        shown, token = page(found, str, words)
        seen += shown
        if not token:
            break
        assert len(shown) == size
    assert seen == sorted(found)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=20))
def test_any_token_is_a_place_or_refused(token: str) -> None:
    try:
        page(["a", "b"], str, {"NextToken": token})
    except Ec2Error as error:
        assert error.code == "InvalidParameterValue"


def test_the_model_is_botocores() -> None:
    assert botocore.session.Session().get_service_model("ec2").api_version == model().api_version == VERSION
