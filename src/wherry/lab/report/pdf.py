"""report.pdf: the page of HTML on A4, set by WeasyPrint."""

from __future__ import annotations

import logging
from pathlib import Path

from wherry.base.errors import Code, Refused


def write(html: str, path: Path) -> None:
    """Writes the file. UNSUPPORTED where WeasyPrint does not find Pango, which sets the text."""
    try:
        from weasyprint import HTML
    except OSError as error:  # it loads Pango when it is imported
        why, again = str(error).splitlines()[0], f"apt-get install libpangoft2-1.0-0, then again: {path.parent}"
        raise Refused(Code.UNSUPPORTED, f"{path} cannot be written", why, again) from None
    logging.getLogger("weasyprint").setLevel(logging.ERROR)  # it tells of each rule that is for screens alone
    HTML(string=html).write_pdf(path)
