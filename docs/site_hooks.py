"""What the site does to pages: links to files outside of docs/ go to the repository.

MkDocs calls these functions by name. In the repository the pages link to each other, to the README and to sources by
relative paths; a site holds docs/ alone.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)\s:]+?)(#[^)\s]*)?(\))")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links that leave docs/, or lead to files that the site leaves out, to the repository."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def pointed(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return found[0]
        inside = target.is_relative_to(ROOT / "docs")
        if inside and files.get_file_from_path(target.relative_to(ROOT / "docs").as_posix()) is not None:
            return found[0]
        kind = "tree" if target.is_dir() else "blob"
        path = PurePosixPath(target.relative_to(ROOT))
        return f"{found[1]}{config.repo_url}/{kind}/main/{path}{found[3] or ''}{found[4]}"

    return LINK.sub(pointed, markdown)
