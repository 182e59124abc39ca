"""Errors as problem documents of RFC 9457."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from wherry.base.errors import Code, WherryError

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """The body of an error's answer (RFC 9457): `what` happened, `why`, and what to do `next`. `code` is of a closed
    list."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(json_schema_extra={"enum": [str(code) for code in Code]})
    what: str
    why: str
    next: str


def problem(error: WherryError) -> dict[str, Any]:
    """An error as a body of RFC 9457; `what`, `why` and `next` stand beside the standard members."""
    status = error.code.http_status
    return {"type": f"urn:wherry:error:{error.code}", "title": error.what, "status": status, "detail": error.why} | (
        error.to_dict()
    )


def headers_of(error: WherryError) -> dict[str, str]:
    """Headers of the answer with an error: how to authenticate, and when to ask again (RFC 9110)."""
    return _HEADERS.get(error.code, {})


_HEADERS = {Code.UNAUTHENTICATED: {"www-authenticate": "Bearer"}, Code.TOO_MANY: {"retry-after": "5"}}
