"""The house has five floors: a room imports from the floors below, and beside it only what is said here."""

import ast
import re
from pathlib import Path

import dpmpi

FLOORS = (
    ("errors", "core", "rng"),  # know each other in this order
    ("problem", "privacy", "crypto"),  # the mathematics
    ("data", "network", "algorithms", "model"),
    ("runtime",),
    ("testing", "run", "api", "sklearn", "trackers", "commands", "__init__", "__main__"),
)
KNOWS = {"data": "problem", "model": "problem", "network": "crypto", "algorithms": "problem.penalties"}
PLUG_INS = ("algorithms", "network.exchange", "network.transport")  # files that never import each other
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
PACKAGE = Path(dpmpi.__file__).parent
COMPLETE = ("runtime", "network", "model", "problem", "api", "commands")  # rooms whose row names every module


def imported(path):
    """The modules of the package that a file imports, without the package's name."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            modules = [f"dpmpi.{name}" for name in modules] if node.module == "dpmpi" else [node.module]
        yield from (m.removeprefix("dpmpi.") for m in modules if m.startswith("dpmpi.") and m != "dpmpi.__version__")


def test_rooms_import_from_the_floors_below():
    for path in Path(dpmpi.__file__).parent.rglob("*.py"):
        own = ".".join(path.relative_to(Path(dpmpi.__file__).parent).with_suffix("").parts)
        room = own.split(".")[0]
        for other in imported(path):
            there, known = other.split(".")[0], f"{other}.".startswith(f"{KNOWS.get(room)}.")
            below = FLOOR[there] < (1 if room in KNOWS else FLOOR[room])
            ordered = FLOOR[room] == FLOOR[there] in (0, 4) and [*FLOOR].index(there) < [*FLOOR].index(room)
            assert there == room or below or ordered or known, f"{own} imports {other}"
            for folder in () if own.endswith("__init__") else PLUG_INS:
                both = own.startswith(f"{folder}.") and other.startswith(f"{folder}.")
                assert not both or "bases" in other, f"{own} imports its sibling {other}"


def room_table():
    """What docs/design.md says is in which room."""
    page = (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\|[^|]*\| `([\w/]+)` \|(.*)\|$", page.split("\n## The rooms\n")[1].split("\n## ")[0], re.MULTILINE
    )
    return {room: set(re.findall(r"`(\w+)`", text)) for room, text in rows}


def test_the_table_of_rooms_is_the_tree():
    table = room_table()
    top = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {room for room in table if "/" not in room} == {name for name in top if not name.startswith("__")}
    for room, named in table.items():
        folder, known = PACKAGE / room, set()
        if folder.is_dir():
            known = {path.stem for path in folder.iterdir() if not path.name.startswith("__")}
            missing = known - named - {name for name in known if f"{room}/{name}" in table}
            assert not missing or room.split("/")[0] not in COMPLETE, f"{room}: {missing}"
        assert named <= known | {"auto"} | set(table), f"{room}: {named - known}"
