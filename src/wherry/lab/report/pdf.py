"""Renders the HTML page as an A4 PDF by WeasyPrint."""

from __future__ import annotations

import logging
from pathlib import Path

from wherry.base.errors import Code, Refused


def write(html: str, path: Path) -> None:
    """Writes the file. Raises UNSUPPORTED when the Pango library, which WeasyPrint needs, is missing."""
    try:
        from weasyprint import HTML
    except OSError as error:  # importing WeasyPrint loads Pango
        why, again = str(error).splitlines()[0], f"apt-get install libpangoft2-1.0-0, then again: {path.parent}"
        raise Refused(Code.UNSUPPORTED, f"{path} cannot be written", why, again) from None
    logging.getLogger("weasyprint").setLevel(logging.ERROR)  # it warns about each CSS rule that applies to screens only
    HTML(string=html).write_pdf(path)
