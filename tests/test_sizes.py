"""Modules stay short enough to be read at once."""

from pathlib import Path

import dpmpi

LONGEST = 400


def test_no_module_is_over_400_lines():
    found = {path: len(path.read_text().splitlines()) for path in Path(dpmpi.__file__).parent.rglob("*.py")}
    assert len(found) > 200
    assert {str(path): lines for path, lines in found.items() if lines > LONGEST} == {}
