"""The methods: one file each, one line here."""

from typing import Any

from dpmpi.algorithms.dual_averaging import ConventionalDualAveraging, DualAveraging, SampledDualAveraging

ALGORITHMS: dict[str, type[Any]] = {
    "dda": ConventionalDualAveraging,
    "dp-dda": DualAveraging,
    "sampled-dda": SampledDualAveraging,
}
