"""mkdocs hooks: adds pages from above docs/ to the site, and adapts Markdown in which GitHub and mkdocs differ. The
files themselves are not changed: their links are valid in the repository and rewritten for the site here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ABOVE = ("CONTRIBUTING.md", "CHANGELOG.md")
_TOP = Path(__file__).resolve().parent.parent
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:examples|native|scripts|tests)/[^)]*\)")
"""A link to a file of the repository that the site has not."""
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LIST_BEHIND_TEXT = re.compile(r"^(?![-#|>\s])(?!\d+\. )(.*\S)\n(?=- |\|)", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from above docs/ to the site."""
    for name in ABOVE:
        files.append(File.generated(config, name, abs_src_path=str(_TOP / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Rewrites links between docs/ and the pages above it, leaves only the text of links to other files of the
    repository, and separates lists and tables from a preceding line of text."""
    if page.file.src_uri in ABOVE:
        markdown = markdown.replace("](docs/", "](")
    else:
        markdown = re.sub(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, ABOVE))})", r"](\1", markdown)
    parts = _FENCE.split(_OUTSIDE.sub(r"\1", markdown))
    return "".join(part if _FENCE.fullmatch(part) else _LIST_BEHIND_TEXT.sub(r"\1\n\n", part) for part in parts)
