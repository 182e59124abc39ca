"""mkdocs hooks: adds pages from outside of docs/ to the site, and adapts Markdown in which GitHub and mkdocs differ.
The files themselves are not changed: their links are valid in the repository and rewritten for the site here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_TOP = Path(__file__).resolve().parent.parent
OUTSIDE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"tiles/docs/{page.name}" for page in (_TOP / "tiles/docs").glob("*.md")),
)
"""Pages that are not in docs/; their places in the site are those in the repository."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LIST_BEHIND_TEXT = re.compile(r"^(?![-#|>\s])(?!\d+\. )(.*\S)\n(?=- |\|)", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside of docs/ to the site."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(_TOP / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Rewrites links between pages in docs/ and outside, leaves only the text of links to other files of the
    repository, and separates lists and tables from a preceding line of text."""
    uri = page.file.src_uri
    parts = _FENCE.split(_LINK.sub(lambda link: rewritten(uri, *link.groups()), markdown))
    return "".join(part if _FENCE.fullmatch(part) else _LIST_BEHIND_TEXT.sub(r"\1\n\n", part) for part in parts)


def rewritten(uri: str, text: str, target: str, anchor: str | None) -> str:
    """A link of a page, by its place in the site. Links of pages in docs/ to others there stay as they are."""
    if ":" in target:
        return f"[{text}]({target}{anchor or ''})"
    place = uri if uri in OUTSIDE else f"docs/{uri}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    if path not in OUTSIDE and not path.startswith("docs/"):
        return text
    there = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
    return f"[{text}]({there}{anchor or ''})"
