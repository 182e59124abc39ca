"""Hooks of mkdocs: pages that lie above docs/ are part of the site, and Markdown means what it means to GitHub.

The files stay as they are: their links hold where they lie, and are rewritten here for where they stand in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ABOVE = ("CONTRIBUTING.md", "CHANGELOG.md")
_TOP = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LIST_BEHIND_TEXT = re.compile(r"^(?![-#|>\s])(?!\d+\. )(.*\S)\n(?=- |\|)", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie above docs/."""
    for name in ABOVE:
        files.append(File.generated(config, name, abs_src_path=str(_TOP / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Links between docs/ and the pages above it; a list or table right behind a line of text."""
    if page.file.src_uri in ABOVE:
        markdown = markdown.replace("](docs/", "](")
    else:
        markdown = re.sub(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, ABOVE))})", r"](\1", markdown)
    parts = _FENCE.split(markdown)
    return "".join(part if _FENCE.fullmatch(part) else _LIST_BEHIND_TEXT.sub(r"\1\n\n", part) for part in parts)
