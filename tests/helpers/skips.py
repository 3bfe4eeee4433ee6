"""The table of skipped tests: how many, why, and the one command that brings them.

python tests/helpers/skips.py FILE      prints the table of all sessions that wrote to FILE
"""

import sys
from collections import Counter
from pathlib import Path


def table(reasons):
    """Return the lines of the table of reasons of the form `WHAT: COMMAND`, one a test; none without a skip."""
    if not reasons:
        return []
    rows = [
        (str(count), *map(str.strip, reason.partition(": ")[::2])) for reason, count in Counter(reasons).most_common()
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {count:>{widths[0]}}  {what:<{widths[1]}}  {command}" for count, what, command in rows]
    return [f"{len(reasons)} skipped, why, and what brings them:", *lines]


if __name__ == "__main__":
    file = Path(sys.argv[1])
    print("\n".join(table(file.read_text().splitlines()) or ["no test was skipped"]))
