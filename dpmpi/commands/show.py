"""A model for people: its coefficients, largest first, with their noise, and what was promised.

`python -m dpmpi show MODEL`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpmpi.core.files import check_output
from dpmpi.errors import ConfigError
from dpmpi.model import Model
from dpmpi.model.coefficients import HEADINGS, by_size, cells
from dpmpi.runtime.flag_parser import Parser

MOST = 40


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi show`."""
    parser = Parser("python -m dpmpi show", None, "Show a model.", allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "examples: python -m dpmpi show runs/demo\n          python -m dpmpi show model.npz --csv table.csv"
    parser.add_argument("model", type=Path, metavar="MODEL", help="a run directory, or its model.npz")
    parser.add_argument(
        "--most", type=int, default=MOST, metavar="N", help=f"rows to print, 0 for all (default: {MOST})"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the whole table there")
    flags = parser.parse_args(argv)
    if flags.most < 0:
        raise ConfigError(f"expected --most of at least 0, found {flags.most}")
    check_output(flags.csv, flags.model)
    model = Model.load(flags.model)
    print("\n".join(lines(model, flags.most)))
    if flags.csv is not None:
        model.to_csv(flags.csv)
    return 0


def lines(model: Model, most: int = 0) -> list[str]:
    """Return a model as lines of text: what it is, the table, the noise, the privacy statement."""
    task, rows = model.task, by_size(model.coefficient_table())
    told = f"classes {', '.join(task.classes)}" if task.classifies else f"labels from {task.low:g} to {task.high:g}"
    found = [
        f"{task.kind}, {told}; loss {model.loss}, {len(model.features)} features, dpmpi {model.version or '?'}",
        "",
    ]
    shown = rows if not most or len(rows) <= most else [row for row in rows if not row.intercept][:most]
    shown += [row for row in rows if row.intercept and row not in shown]
    found += [*text_table([list(HEADINGS), *map(cells, shown)]), ""]
    if len(shown) < len(rows):
        found += [f"{len(rows) - len(shown):,} smaller ones are not shown: --most 0 or --csv FILE", ""]
    found += [f"noise    {model.noise_note}", f"privacy  {model.privacy.text}"]
    if model.privacy.budget_ended:
        found.append(f"budget   {model.privacy.budget_ended}")
    return found


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; columns without anything below their heading are left out."""
    kept = [k for k in range(len(rows[0])) if any(row[k] for row in rows[1:])]
    widths = [max(len(row[k]) for row in rows) for k in kept]
    return ["  ".join(row[k].ljust(width) for k, width in zip(kept, widths, strict=True)).rstrip() for row in rows]
