"""The house has five floors: a room imports from the floors below, and beside it only what is said here."""

import ast
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
