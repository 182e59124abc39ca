"""Signature Version 4, against botocore's signer."""

from __future__ import annotations

import time

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.service.ec2.errors import Ec2Error
from wherry.service.ec2.signature import WINDOW, is_right, parsed

KEY, SECRET = "WKIAABCDEFGHIJKLMNOP", "a secret of forty letters"
BODY = b"Action=DescribeInstances&Version=2016-11-15"
Given = list[tuple[bytes, bytes]]


def signed(body: bytes = BODY, region: str = "local", service: str = "ec2", **headers: str) -> Given:
    """The headers of a request that botocore signs now."""
    given = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8", **headers}
    request = AWSRequest("POST", "https://cloud.test:7443/ec2", headers=given, data=body)
    SigV4Auth(Credentials(KEY, SECRET), service, region).add_auth(request)
    found = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    return [*found, (b"host", b"cloud.test:7443"), (b"user-agent", b"not signed")]


def right(headers: Given, body: bytes = BODY, secret: str = SECRET, path: str = "/ec2") -> bool:
    return is_right(parsed(headers, time.time()), secret, "POST", path, headers, body)


def replaced(headers: Given, name: bytes, value: bytes) -> Given:
    return [(key, value if key == name else old) for key, old in headers]


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40))
def test_what_botocore_signs_is_right(body: bytes, value: str) -> None:
    assert right(signed(body, **{"X-Amz-Anything": f"a   {value}  b "}), body)


def test_every_part_is_signed() -> None:
    headers = signed(**{"X-Amz-Anything": "one"})
    assert right(headers)
    assert not right(headers, BODY + b"&DryRun=true")
    assert not right(headers, secret=SECRET + "x")
    assert not right(headers, path="/ec2/")
    for name in (b"host", b"x-amz-anything", b"content-type"):
        assert not right(replaced(headers, name, b"another")), name
    assert right(replaced(headers, b"user-agent", b"another"))


def test_a_date_of_the_same_day_is_signed() -> None:
    headers = signed()
    (date,) = (value.decode() for name, value in headers if name == b"x-amz-date")
    dated = parsed(headers, time.time()).dated
    other = f"{date[:-3]}{(int(date[-3:-1]) + 1) % 60:02}Z"
    changed = replaced(headers, b"x-amz-date", other.encode())
    found = parsed(changed, dated)
    assert not is_right(found, SECRET, "POST", "/ec2", changed, BODY)


def test_the_hash_of_the_body_is_not_taken_from_a_header() -> None:
    headers = signed(**{"X-Amz-Content-SHA256": "0" * 64})
    assert not right(headers)
    assert not right(signed(**{"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}))


@pytest.mark.parametrize("seconds", [-WINDOW - 2, WINDOW + 2])
def test_a_clock_that_is_wrong(seconds: float) -> None:
    headers = signed()
    dated = parsed(headers, time.time()).dated
    parsed(headers, dated + seconds * 0.9)
    with pytest.raises(Ec2Error) as caught:
        parsed(headers, dated + seconds)
    assert (caught.value.code, caught.value.status) == ("RequestExpired", 400)


@pytest.mark.parametrize(("region", "service"), [("us-east-1", "ec2"), ("local", "s3")])
def test_another_scope(region: str, service: str) -> None:
    with pytest.raises(Ec2Error) as caught:
        right(signed(region=region, service=service))
    assert (caught.value.code, caught.value.status) == ("AuthFailure", 401)


def code(headers: Given) -> str:
    with pytest.raises(Ec2Error) as caught:
        parsed(headers, time.time())
    assert 400 <= caught.value.status < 500
    return caught.value.code


def test_what_must_be_there() -> None:
    headers = signed()
    (authorization,) = (value for name, value in headers if name == b"authorization")
    assert code([one for one in headers if one[0] != b"authorization"]) == "MissingAuthenticationToken"
    assert code([*headers, (b"authorization", authorization)]) == "IncompleteSignature"
    assert code([one for one in headers if one[0] != b"x-amz-date"]) == "IncompleteSignature"
    assert code([*headers, (b"x-amz-date", b"20200101T000000Z")]) == "IncompleteSignature"
    assert code(replaced(headers, b"x-amz-date", b"20261340T256199Z")) == "IncompleteSignature"
    assert code([*headers, (b"x-amz-unsigned", b"x")]) == "IncompleteSignature"
    assert code([one for one in headers if one[0] != b"host"]) == "IncompleteSignature"
    for old, new in (
        (b"AWS4-HMAC-SHA256", b"AWS4-HMAC-SHA1"), (b"Credential=", b"Credential=/"), (b"host;", b""),
        (b"content-type;host;x-amz-date", b"x-amz-date;host;content-type"), (b"/aws4_request", b""),
        (b"Signature=", b"Signature=0"),
    ):  # fmt: skip
        assert old in authorization
        assert code(replaced(headers, b"authorization", authorization.replace(old, new))) == "IncompleteSignature", new


HEADER = st.tuples(st.sampled_from([b"authorization", b"x-amz-date", b"host", b"x-amz-x"]), st.binary(max_size=200))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(HEADER, max_size=6))
def test_any_headers_are_refused_in_ec2s_words(headers: Given) -> None:
    code(headers)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_signature_with_one_byte_changed_is_not_right(at: int, byte: int) -> None:
    headers = signed()
    (value,) = (value for name, value in headers if name == b"authorization")
    changed = bytearray(value)
    changed[at % len(changed)] = byte
    given = replaced(headers, b"authorization", bytes(changed))
    try:
        found = parsed(given, time.time())
    except Ec2Error:
        return
    same = bytes(changed) == value or found.key != KEY  # the key's id is looked up, and not signed
    assert same or not is_right(found, SECRET, "POST", "/ec2", given, BODY)
