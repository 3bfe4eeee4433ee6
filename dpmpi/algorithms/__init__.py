"""The methods: one file each, one line here."""

from dpmpi.algorithms.dual_averaging import ConventionalDualAveraging, DualAveraging, SampledDualAveraging
from dpmpi.methods import Method

ALGORITHMS: dict[str, type[Method]] = {
    "dda": ConventionalDualAveraging,
    "dp-dda": DualAveraging,
    "sampled-dda": SampledDualAveraging,
}
