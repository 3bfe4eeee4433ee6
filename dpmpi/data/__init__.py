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
    spec: str, *, samples: int | None, normalize: bool, test_fraction: float, seed: int, loss: str
) -> Source:
    """Return the source that `spec` names: `synthetic[:options]`, `libsvm:PATH` or `shards:PATTERN`."""
    settings = Settings(samples, normalize, test_fraction, seed, loss)
    settings.check()
    name, _, text = spec.partition(":")
    if name not in SOURCES:
        raise ConfigError(f"unknown data source {name!r}, expected one of {', '.join(SOURCES)}{nearest(name, SOURCES)}")
    return SOURCES[name].parse(text, settings)
