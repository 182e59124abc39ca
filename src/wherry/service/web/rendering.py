"""From values to HTML: templates, the headers of each answer, and the fields of a form.

Invariants: every template escapes; every page has the content security policy, which allows nothing inline and nothing
from elsewhere; pages are kept in no cache.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from wherry.base.errors import Code, Refused
from wherry.base.units import format_duration, format_rate, format_size, format_span, parse_duration
from wherry.base.version import __version__
from wherry.service.authentication import COOKIE

STATIC_FILES = Path(__file__).parent / "static"
_NOTHING_ELSE = "base-uri 'none'; form-action 'self'; object-src 'none'"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    f"frame-src 'self'; frame-ancestors 'none'; {_NOTHING_ELSE}"
)
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'"
)
"""A report's own answer: it is drawn, and never run."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none browsers hide the origin of forms, too
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SECURE = "Path=/; Secure; HttpOnly; SameSite=Strict"


def _when(at: float | None) -> str:
    """A time as the daemon's clock shows it, with its date unless that is today's; None is a dash."""
    if at is None:
        return "-"
    then, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wherry.service.web"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    environment.filters.update(
        {
            "size": format_size,
            "rate": format_rate,
            "duration": format_duration,
            "span": lambda of: "none" if of is None else of if of == "instance" else format_span(of),
            "when": _when,
            "part": lambda name: quote(str(name), safe=""),
            "words": lambda words: shlex.join(map(str, words)),
            "program": lambda path: str(path).rpartition("/")[2] or path,
            "percent": lambda share: f"{100 * share:.0f} %",
        }
    )
    environment.globals.update({"static": static_url, "version": __version__})
    return environment


@cache
def static_url(name: str) -> str:
    """The address of a file, which is another one when the file is."""
    return f"/web/static/{name}?{hashlib.sha256((STATIC_FILES / name).read_bytes()).hexdigest()[:12]}"


def render(request: Request, template: str, status: int = 200, /, **values: Any) -> Response:
    """A page, or for htmx the part of it that changes."""
    part = request.headers.get("hx-request") == "true"
    peer = request.scope["state"].get("peer")
    values |= {
        "layout": "part.html" if part else "base.html",
        "path": request.url.path,
        "here": f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path,
        "who": peer.who if peer else "",
        "role": getattr(getattr(peer, "account", None), "role", "") if peer else "",
        "csrf": getattr(peer, "csrf", "") if peer else "",
    }
    text = _environment().get_template(template).render(**values)
    answer = HTMLResponse(text, status, {**_HEADERS, "Content-Security-Policy": POLICY})
    if values["csrf"]:
        answer.headers["Wherry-CSRF"] = values["csrf"]
    return answer


def report_answer(html: str) -> Response:
    """A study's report as its own document."""
    headers = {**_HEADERS, "Content-Security-Policy": REPORT_POLICY}
    del headers["Cross-Origin-Opener-Policy"]  # with it browsers show no document in a sandbox of its own
    return HTMLResponse(html, headers=headers)


def redirect(where: str) -> Response:
    """To another page, which is asked for by GET."""
    return Response(status_code=303, headers={**_HEADERS, "Location": where})


def with_session(answer: Response, text: str) -> Response:
    """The answer, with the cookie of a session; an empty text removes it."""
    lasts = "" if text else "; Max-Age=0"
    answer.headers.append("Set-Cookie", f"{COOKIE}={text}; {_SECURE}{lasts}")
    return answer


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; none of an empty one. USAGE when it is none."""
    if not await request.body():
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Refused(Code.USAGE, "this is no form", "its type is another one", "use the page")
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=200, errors="strict"))
    except ValueError:
        raise Refused(Code.USAGE, "this is no form", "it cannot be read", "use the page") from None


def number(form: Mapping[str, str], key: str, noun: str, usual: float | None = None) -> float | None:
    """A number of a form; `usual` where the field is empty. USAGE for a text that is no number."""
    text = form.get(key, "").strip()
    if not text:
        return usual
    try:
        return float(text)
    except ValueError:
        raise Refused(Code.USAGE, f"{noun}: {text[:40]!r} is no number", "", "write it as 4 or 0.5") from None


def whole(form: Mapping[str, str], key: str, noun: str, usual: int | None = None) -> int | None:
    """The same for a whole number."""
    text = form.get(key, "").strip()
    if not text:
        return usual
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refused(Code.USAGE, f"{noun}: {text[:40]!r} is no whole number", "", "write it as 4")
    return int(text)


def duration(form: Mapping[str, str], key: str, noun: str) -> float:
    """Seconds of a duration of a form. USAGE for a text that is none."""
    try:
        return parse_duration(form.get(key, "").strip())
    except ValueError as error:
        raise Refused(Code.USAGE, f"{noun}: this is no duration", str(error), "write it as 4h") from None
