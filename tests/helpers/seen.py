"""What came out of the processes of a run, and how two such sights are compared: see two_worlds.py."""

import dataclasses
import itertools
import json
import re
import stat

import tap

OWN = re.compile(r"rank-(\d+)")
"""A file of one rank has its number in its name."""


LEDGER = re.compile(r"rank-\d+\.jsonl$")
COVERS_MARK = ("shard", "training", "hash", "prev", "mac", "signature")


@dataclasses.dataclass(frozen=True)
class Seen:
    """All that came out of one process, and, on the first one, of all their files."""

    codes: tuple
    sent: tuple
    said: str
    files: dict
    passes: int = 0
    """How often the records were gone through."""


def read_files(place):
    """Return the content and mode of every file in the folders below this one."""
    found = (path for path in sorted(place.rglob("*")) if path.is_file() and path.parent != place)
    return {str(path.relative_to(place)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in found}


def leaks(first, second):
    """Yield a line for everything that differs between two worlds and is not a rank's own."""
    if first.codes != second.codes:
        yield f"exit codes {first.codes} and {second.codes}"
    if first.passes != second.passes:
        yield f"passes over the records: {first.passes} and {second.passes}"
    if first.said != second.said:
        yield f"printed: {first.said[:600]!r} and {second.said[:600]!r}"
    if len(first.sent) != len(second.sent):
        yield f"the number of buffers: {len(first.sent)} and {len(second.sent)}"
    for k, (one, other) in enumerate(zip(first.sent, second.sent, strict=False)):
        if one != other:
            yield f"buffer {k}, {one.where}: {difference(one.content, other.content)}"
    for name in sorted(first.files.keys() | second.files.keys()):
        yield from _file_leaks(name, first.files.get(name), second.files.get(name))


def _file_leaks(name, one, other):
    if one is None or other is None:
        yield f"the file {name} is there in one world only"
        return
    if one[0] == other[0] or (LEDGER.search(name) and _charges(one[0]) == _charges(other[0])):
        return
    if OWN.search(name) is None:
        yield f"the file {name}: {difference(one[0], other[0])}"
    elif one[1] & 0o077:
        yield f"the file {name} of mode {one[1]:04o}: {difference(one[0], other[0])}"


def _charges(ledger):
    """Return the entries of a ledger without its marks of the shard, and the hashes that cover it.

    A mark is a keyed hash: to all who lack its owner's key it is a random number.
    """
    entries = [json.loads(line) for line in ledger.splitlines()]
    return [{key: value for key, value in entry.items() if key not in COVERS_MARK} for entry in entries]


def difference(one, other):
    """Return where two contents differ first, with what is around."""
    pairs = enumerate(itertools.zip_longest(one, other))
    at = next((k for k, (a, b) in pairs if a != b), 0)
    around = slice(max(0, at - 60), at + 60)
    return f"lengths {len(one)} and {len(other)}, from byte {at}: {one[around]!r} AND {other[around]!r}"


def write_seen(path, seen):
    """Write down what one rank saw."""
    sent = [[one.communicator, one.verb, one.peer, one.content.hex()] for one in seen.sent]
    path.write_text(json.dumps({"codes": seen.codes, "said": seen.said, "passes": seen.passes, "sent": sent}))


def read_seen(path, files=None):
    """Return what one rank saw."""
    found = json.loads(path.read_text())
    sent = [tap.Sent(*where, bytes.fromhex(content)) for *where, content in found["sent"]]
    return Seen(tuple(found["codes"]), tuple(sent), found["said"], files or {}, found["passes"])
