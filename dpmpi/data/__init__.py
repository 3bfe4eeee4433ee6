"""Where records come from: one file per source, one line in the table."""

from __future__ import annotations

from dpmpi.data.adult import Adult, write_whole
from dpmpi.data.base import Settings, Shard, Source, Survey, widen
from dpmpi.data.libsvm import LibsvmFile
from dpmpi.data.mean import Mean
from dpmpi.data.shards import ShardFiles, write_shards
from dpmpi.data.synthetic import Synthetic
from dpmpi.errors import ConfigError, nearest

__all__ = ["SOURCES", "Settings", "Shard", "Source", "Survey", "parse_source", "widen", "write_shards", "write_whole"]

SOURCES: dict[str, type[Source]] = {
    "synthetic": Synthetic, "libsvm": LibsvmFile, "shards": ShardFiles, "adult": Adult, "mean": Mean,
}  # fmt: skip


def parse_source(
    spec: str, *, samples: int | None, normalize: bool, test_fraction: float | None, seed: int, loss: str,
    dimension: int | None = None,
) -> Source:  # fmt: skip
    """Return the source that `spec` names, e.g. `synthetic[:options]`, `libsvm:PATH` or `shards:PATTERN`."""
    name, _, text = spec.partition(":")
    if name not in SOURCES:
        raise ConfigError(f"unknown data source {name!r}, expected one of {', '.join(SOURCES)}{nearest(name, SOURCES)}")
    if name == "mean" and loss != "mean":
        raise ConfigError(f"mean data have no labels, which --loss {loss} needs: take --loss mean, or other data")
    if loss == "mean" and name != "mean":
        raise ConfigError(f"--loss mean needs points in a cube, found --data {name}: take --data mean, or another loss")
    if test_fraction is None:  # a shard that is not evaluated needs all its rows for training; a mean has no accuracy
        test_fraction = 0.0 if SOURCES[name].private or name == "mean" else 0.1
    settings = Settings(samples, normalize, test_fraction, seed, loss, dimension)
    settings.check()
    return SOURCES[name].parse(text, settings)
