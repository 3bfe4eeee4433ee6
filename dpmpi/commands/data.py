"""Prepare data sets once: list sources, code tables, cut shards."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from dpmpi.commands.describe import add_describe, run_describe
from dpmpi.core.files import read_text, write_file
from dpmpi.data import SOURCES, SourceOptions, parse_source
from dpmpi.data.adult import FEATURE_NAMES, Adult, write_adult
from dpmpi.data.codebook import DECIMALS, EXAMPLE, SEPARATORS, parse_codebook, read_codebook
from dpmpi.data.codebook_text import to_toml
from dpmpi.data.columns import check_name, write_columns
from dpmpi.data.shards import write_npz, write_shards
from dpmpi.data.table import Coded, code_table, rows_that_stay
from dpmpi.data.table_schema import read_table_schema, to_table_schema
from dpmpi.errors import ConfigError
from dpmpi.problem.losses import MEAN, parse_loss
from dpmpi.problem.task import Declared, TaskKind
from dpmpi.runtime.flag_parser import Parser


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi data`."""
    more = "ACTION --help tells more"
    parser = Parser("python -m dpmpi data", None, "Prepare data sets once.", more, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="what --data of a run takes", allow_abbrev=False)
    example = "example: python -m dpmpi data shard libsvm:a9a.bz2 --ranks 20 --seed 7 --out 'shards/a9a-{rank}.npz'"
    what = "cut a data set into one file per rank"
    shard = actions.add_parser("shard", help=what, allow_abbrev=False, epilog=example)
    shard.add_argument("source", help="what --data of a run takes: libsvm:PATH, adult:DIR or synthetic:...")
    shard.add_argument("--loss", help="a loss implies its task; synthetic labels depend on it")
    tasks = get_args(TaskKind)
    shard.add_argument("--task", choices=tasks, help="what labels are (default: what the source says, or two classes)")
    shard.add_argument("--classes", metavar="A,B,...", help="the names of the classes (default: the labels that occur)")
    what = "the range of numbers, or 0:MOST of counts (default: what occurs)"
    shard.add_argument("--label-range", metavar="LOW:HIGH", help=what)
    example = "example: python -m dpmpi data adult data/uci --out adult.svm"
    what = "code the UCI census records: one file, or with --ranks one per rank"
    adult = actions.add_parser("adult", help=what, allow_abbrev=False, epilog=example)
    adult.add_argument("folder", metavar="DIR", help="where adult.data and adult.test are, plain or compressed")
    adult.set_defaults(loss=None, task=None, classes=None, label_range=None)
    _add_table(actions)
    _add_codebook(actions)
    add_describe(actions)
    for action in (shard, adult):
        action.add_argument("--ranks", type=int, required=action is shard, metavar="N")
        names = "file names, with {rank}" if action is shard else "a .npz or .svm file; with --ranks names with {rank}"
        action.add_argument("--out", required=True, metavar="FILE", help=names)
        action.add_argument("--seed", type=int, help="the shared seed: shuffles the rows (default: 0)")
        action.add_argument("--samples", type=int, metavar="N", help="use only N rows in total")
        deals = "who has which rows: even, sorted, dirichlet:ALPHA or sizes:A,B,... (default: even)"
        action.add_argument("--deal", metavar="DEAL", help=deals)
        action.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=True)
    flags, unknown = parser.parse_known_args(argv)
    if unknown:  # the action's own parser knows which flag was meant
        actions.choices[flags.action].error(f"unrecognized arguments: {' '.join(unknown)}")
    if flags.action == "list":
        for source in SOURCES.values():
            print((source.__doc__ or "").splitlines()[0].replace("`", ""))
    elif flags.action == "describe":
        return run_describe(flags)
    elif flags.action == "codebook":
        _convert_codebook(flags)
    elif flags.action == "table":
        _write_table(flags)
    elif flags.action == "adult" and flags.ranks is None:
        _write_adult(flags)
    else:
        _write_shards(flags)
    return 0


def _add_table(actions: Any) -> None:
    table = actions.add_parser("table", help="code a table by a codebook, for shards", allow_abbrev=False)
    table.formatter_class = argparse.RawDescriptionHelpFormatter
    table.description = "Code a table by a codebook that all parties agreed on. Without TABLE, say what it gives."
    table.epilog = (
        "examples: python -m dpmpi data table --codebook codebook.toml\n"
        f"          python -m dpmpi data table patients.csv --codebook codebook.toml --out hospital-0.npz\n\n{EXAMPLE}"
    )
    table.add_argument("table", nargs="?", type=Path, metavar="TABLE", help="CSV with a header line, or Parquet")
    table.add_argument("--codebook", required=True, type=Path, metavar="FILE", help="what becomes of which column")
    table.add_argument("--out", type=Path, metavar="FILE", help="the shard to write, a .npz file")
    table.add_argument("--separator", choices=SEPARATORS, help="(default: the codebook's, or what fits the header)")
    table.add_argument("--decimal", choices=DECIMALS, help="comma for 37,5 (default: the codebook's, or point)")
    what = (
        "the list of rows that are left out, .csv or .parquet, for you alone (default: beside --out, if there are any)"
    )
    table.add_argument("--left-out", type=Path, metavar="FILE", help=what)
    what = "an earlier shard with records of the same people: what its ledger says was spent counts for the new one too"
    table.add_argument("--continues", type=Path, metavar="OLD", help=what)
    table.add_argument("--unlabelled", action="store_true", help="the table has no labels: to predict, not to learn")


def _add_codebook(actions: Any) -> None:
    what = "make a codebook of a Frictionless Table Schema, or the other way round"
    one = actions.add_parser("codebook", help=what, allow_abbrev=False)
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.epilog = (
        "examples: python -m dpmpi data codebook codebook.toml --from schema.json --label readmitted\n"
        "          python -m dpmpi data codebook codebook.toml --to schema.json"
    )
    one.add_argument("codebook", type=Path, metavar="CODEBOOK", help="the codebook to write, or to read with --to")
    way = one.add_mutually_exclusive_group(required=True)
    way.add_argument("--from", dest="from_", type=Path, metavar="SCHEMA", help="the Table Schema (JSON) to read")
    way.add_argument("--to", type=Path, metavar="SCHEMA", help="the Table Schema (JSON) to write")
    what = "with --from: the field to predict (default: the one that dpmpi marked)"
    one.add_argument("--label", metavar="FIELD", help=what)


def _convert_codebook(flags: argparse.Namespace) -> None:
    if flags.to is not None:
        if flags.label is not None:
            raise ConfigError("expected --label with --from alone, found --to: the codebook has its label")
        book = read_codebook(flags.codebook)
        schema, notes = to_table_schema(book)
        write_file(flags.to, json.dumps(schema, indent=2, ensure_ascii=False) + "\n", error=ConfigError)
        print(f"{len(schema['fields'])} fields: {flags.to}")
    else:
        if flags.codebook.exists():
            raise ConfigError(f"expected a new name for the codebook, found {flags.codebook}: remove it first")
        book, content = read_table_schema(flags.from_, flags.label)
        notes = content.notes
        write_file(flags.codebook, to_toml(book, content.remarks), error=ConfigError)
        print(f"{len(book.features)} columns of {len(book.columns)} fields: {flags.codebook}")
    print("\n".join([*notes, f"codebook {book.digest}: all parties must see the same"]))


def _write_table(flags: argparse.Namespace) -> None:
    if (flags.table is None) != (flags.out is None) or (flags.out is not None and flags.out.suffix != ".npz"):
        pair = "expected TABLE and --out FILE.npz, or neither to look at the codebook alone"
        raise ConfigError(f"{pair}, found one or another name")
    if flags.continues is not None and (flags.table is None or flags.unlabelled):
        raise ConfigError("expected a table to learn from with --continues, found none: leave it out")
    if flags.left_out is not None:
        check_name(flags.left_out, "--left-out")
    text = read_text(flags.codebook, "the codebook")
    codebook = parse_codebook(text, str(flags.codebook))
    given = {name: getattr(flags, name) for name in ("separator", "decimal") if getattr(flags, name) is not None}
    if flags.table is None:
        print(f"{len(codebook.features)} columns: {', '.join(codebook.features)}")
    else:
        coded = code_table(flags.table, replace(codebook, **given), labelled=not flags.unlabelled)
        stay = None if flags.continues is None else rows_that_stay(coded, flags.continues)
        most = 1 if codebook.person is None else codebook.person.most
        whose: dict[str, Any] = {"persons": coded.persons, "most": most}
        write_npz(flags.out, coded.rows, coded.labels, continues=stay is not None, codebook=text, **whose)
        print(f"{coded.rows.count} rows of {coded.rows.dimension} columns: {flags.out}")
        if stay is not None:
            print(f"{stay} of them were in {flags.continues}: a --ledger goes on with what it has spent")
        if coded.persons is not None:
            print(f"{int(coded.persons.max()) + 1} persons with at most {most} records each, which all count as one")
        if coded.beyond:
            print(f"left out, as their persons had {most} before: {coded.beyond} rows")
        if coded.dropped:
            print(f"left out for missing values: {coded.dropped} rows")
        _list_left_out(flags, coded)
        if coded.unused:
            print(f"not in the codebook, left out: {', '.join(coded.unused)}")
    print(f"codebook {codebook.digest}: all parties must see the same")


def _list_left_out(flags: argparse.Namespace, coded: Coded) -> None:
    """Write which rows were left out, and why; without --left-out only if there are any."""
    path = flags.left_out or flags.out.with_suffix(".left-out.csv")
    if coded.left_out or flags.left_out is not None:
        lines = [int(where.rpartition(":")[2]) for where, _ in coded.left_out]
        write_columns(path, {"line": lines, "reason": [why for _, why in coded.left_out]})
        print(f"which rows were left out, and why, for you alone: {path}")
    else:
        path.unlink(missing_ok=True)  # of an earlier table


def _write_adult(flags: argparse.Namespace) -> None:
    if "{" in flags.out or any(getattr(flags, name) is not None for name in ("seed", "samples", "deal")):
        wanted = "expected --ranks N with {rank}, --seed, --samples or --deal"
        raise ConfigError(f"{wanted}, found none: give it, or leave them out")
    rows = write_adult(Adult.parse(flags.folder, SourceOptions(normalize=flags.normalize)), Path(flags.out))
    print(f"{rows} rows of {len(FEATURE_NAMES)} columns: {flags.out}", file=sys.stderr)


def _write_shards(flags: argparse.Namespace) -> None:
    seed = flags.seed or 0
    if flags.ranks < 1 or seed < 0:
        raise ConfigError(f"expected --ranks >= 1 and --seed >= 0, found {flags.ranks} and {seed}")
    spec = f"adult:{flags.folder}" if flags.action == "adult" else flags.source
    kind = flags.task or (None if flags.loss in (None, MEAN) else parse_loss(flags.loss).kinds[0])
    declared = Declared.parse(kind, flags.classes, flags.label_range)
    given = {"samples": flags.samples, "normalize": flags.normalize, "loss": flags.loss, "deal": flags.deal or "even"}
    given["declared"] = declared
    if spec.partition(":")[0] == "mean" and flags.loss != MEAN:
        raise ConfigError("expected --loss mean for shards of points without labels, found none: add it")
    source = parse_source(spec, test_fraction=0.0, seed=seed, **given)

    def progress(done: int) -> None:
        print(f"\r{done}/{flags.ranks} shards", end="", file=sys.stderr, flush=True)

    paths = write_shards(source, flags.ranks, flags.out, progress)
    print(f"\r{len(paths)} shards: {paths[0]} ... {paths[-1]}", file=sys.stderr)
