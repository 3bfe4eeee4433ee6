"""The methods: one file each, one line here."""

from dpmpi.algorithms.consensus_descent import ConsensusDescent, GeometricDescent, PlainDescent
from dpmpi.algorithms.coordinate_descent import CoordinateDescent
from dpmpi.algorithms.dp_admm import CentredADMM
from dpmpi.algorithms.dual_averaging import ConventionalDualAveraging, DualAveraging, SampledDualAveraging
from dpmpi.algorithms.exact_admm import ExactADMM, PrimalPerturbation
from dpmpi.algorithms.ip_admm import MultiStepADMM
from dpmpi.algorithms.local_admm import LocalAdmm
from dpmpi.algorithms.local_descent import LocalDescent, MinMaxDescent
from dpmpi.algorithms.objective_admm import DualPerturbation, RecycledADMM
from dpmpi.algorithms.one_shot import OneShot
from dpmpi.methods import Method

ALGORITHMS: dict[str, type[Method]] = {
    "dda": ConventionalDualAveraging,
    "dp-dda": DualAveraging,
    "sampled-dda": SampledDualAveraging,
    "dgd": PlainDescent,
    "dp-dgd": ConsensusDescent,
    "hmv-dgd": GeometricDescent,
    "one-shot": OneShot,
    "admm": ExactADMM,
    "ip-admm": MultiStepADMM,
    "dp-admm": CentredADMM,
    "pvp-admm": PrimalPerturbation,
    "dvp-admm": DualPerturbation,
    "r-admm": RecycledADMM,
    "ldp-admm": LocalAdmm,
    "ldp-gd": LocalDescent,
    "ldp-gd-minmax": MinMaxDescent,
    "rcd": CoordinateDescent,
}
