"""Errors as problem documents of RFC 9457."""

from __future__ import annotations

from typing import Any

from wherry.base.errors import WherryError


def problem(error: WherryError) -> dict[str, Any]:
    """An error as a body of RFC 9457; `what`, `why` and `next` stand beside the standard members."""
    status = error.code.http_status
    return {"type": f"urn:wherry:error:{error.code}", "title": error.what, "status": status, "detail": error.why} | (
        error.to_dict()
    )
