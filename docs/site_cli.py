"""Write docs/cli.md from the parsers themselves: python docs/site_cli.py. A test holds the page to what this makes."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

from dpmpi.commands.dispatch import COMMANDS, main

HEAD = """\
# The command line

What every command says of itself with `--help`, made by `python docs/site_cli.py`. In Python the flags of a run are
keywords of `dpmpi.train` and `dpmpi.simulate`, and in TOML files they are keys without the dashes.
"""
PARTS = {"data": ("list", "shard", "adult", "table", "codebook", "describe")}
"""Commands whose actions have flags of their own."""


def help_of(*words: str) -> str:
    """Return the help of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return re.sub(r"[ \t]+$", "", out.getvalue().strip(), flags=re.MULTILINE)


def page() -> str:
    """Return the page."""
    os.environ["COLUMNS"] = "110"
    parts = [HEAD]
    for name, what in COMMANDS.items():
        parts.append(f"## dpmpi {name}\n\n{what.partition(':')[0].capitalize()}.\n")
        for words in [(name,), *((name, part) for part in PARTS.get(name, ()))]:
            parts.append("```text\n" + help_of(*words) + "\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(page(), encoding="utf-8")
