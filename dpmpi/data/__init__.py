"""Where records come from: one file per source, one line in the table."""

from __future__ import annotations

from dpmpi.data.base import Settings, Shard, Source, Survey, widen
from dpmpi.data.libsvm import LibsvmFile
from dpmpi.data.shards import ShardFiles, write_shards
from dpmpi.data.synthetic import Synthetic
from dpmpi.errors import ConfigError, nearest

__all__ = ["SOURCES", "Settings", "Shard", "Source", "Survey", "parse_source", "widen", "write_shards"]

SOURCES: dict[str, type[Source]] = {"synthetic": Synthetic, "libsvm": LibsvmFile, "shards": ShardFiles}


def parse_source(
    spec: str, *, samples: int | None, normalize: bool, test_fraction: float | None, seed: int, loss: str,
    dimension: int | None = None,
) -> Source:  # fmt: skip
    """Return the source that `spec` names: `synthetic[:options]`, `libsvm:PATH` or `shards:PATTERN`."""
    name, _, text = spec.partition(":")
    if name not in SOURCES:
        raise ConfigError(f"unknown data source {name!r}, expected one of {', '.join(SOURCES)}{nearest(name, SOURCES)}")
    if test_fraction is None:  # a shard that is not evaluated needs all its rows for training
        test_fraction = 0.0 if SOURCES[name].private else 0.1
    settings = Settings(samples, normalize, test_fraction, seed, loss, dimension)
    settings.check()
    return SOURCES[name].parse(text, settings)
