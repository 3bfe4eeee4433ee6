"""Where records come from: one file per source, one line in the table."""

from __future__ import annotations

import os
from pathlib import Path

from dpmpi.core.registry import Registry
from dpmpi.data.dealing import Deal
from dpmpi.data.source import Shard, Source, SourceOptions, Survey, widen
from dpmpi.errors import ConfigError, nearest
from dpmpi.problem.losses import MEAN, parse_loss
from dpmpi.problem.task import Declared

__all__ = ["SOURCES", "Shard", "Source", "SourceOptions", "Survey", "parse_source", "widen"]

SOURCES: Registry[Source] = Registry(
    __name__,
    {
        "synthetic": "synthetic:Synthetic",
        "libsvm": "libsvm:LibsvmFile",
        "shards": "shards:ShardFiles",
        "adult": "adult:Adult",
        "images": "images:Images",
        "mean": "mean:Mean",
        "arrays": "arrays:Arrays",
    },
)


_TABLES = (".csv", ".tsv", ".parquet")
_TEXTS = (".bz2", ".gz", ".xz", ".txt", ".svm", ".libsvm", ".t")


def _near(spec: str, name: str) -> str:
    """Return a suggestion for an unknown source: a word that is close, or a file with its missing word before it."""
    path = Path(spec)
    if name != spec:
        return nearest(name, SOURCES)
    if {*_TABLES} & {*path.suffixes}:
        return ": code it into shards first (dpmpi data table --help)"
    if path.suffix == ".npz":
        return f" (did you mean shards:{spec}?)"
    if path.suffix in _TEXTS or os.path.isfile(spec):
        return f" (did you mean libsvm:{spec}?)"
    return nearest(name, SOURCES)


def parse_source(  # noqa: PLR0913 - the flags about data
    spec: str,
    *,
    samples: int | None,
    normalize: bool,
    test_fraction: float | None,
    seed: int,
    loss: str | None,
    dimension: int | None = None,
    deal: str = "even",
    declared: Declared | None = None,
) -> Source:
    """Return the source that `spec` names, e.g. `synthetic[:options]`, `libsvm:PATH` or `shards:PATTERN`."""
    name, _, text = spec.partition(":")
    if name not in SOURCES:
        known = ", ".join(SOURCES)
        raise ConfigError(f"expected a data source among {known}, found {name!r}{_near(spec, name)}")
    if name == "mean" and loss not in (None, MEAN):
        raise ConfigError(f"expected --loss mean for mean data, which have no labels, found {loss}: take other data")
    if loss == MEAN and name != "mean":
        raise ConfigError(f"expected --data mean for --loss mean, found {name}: take points in a cube, or another loss")
    usual_tests = test_fraction is None
    if test_fraction is None:  # a shard that is not evaluated needs all its rows for training; a mean has no accuracy
        test_fraction = 0.0 if SOURCES[name].private or name == "mean" else 0.1
    if declared is None:
        declared = Declared(None if loss in (None, MEAN) else parse_loss(loss).kinds[0])
    options = SourceOptions(
        samples=samples,
        normalize=normalize,
        test_fraction=test_fraction,
        usual_tests=usual_tests,
        seed=seed,
        loss=loss,
        dimension=dimension,
        deal=Deal.parse(deal),
        declared=declared,
    )
    options.check()
    return SOURCES[name].parse(text, options)
