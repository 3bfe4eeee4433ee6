"""The methods: one file each, one line here."""

from dpmpi.algorithms.admm import Admm, PvpAdmm
from dpmpi.algorithms.dda import Dda, DpDda, SampledDda
from dpmpi.algorithms.dgd import Dgd, DpDgd
from dpmpi.algorithms.dp_admm import DpAdmm
from dpmpi.algorithms.dvp_admm import DvpAdmm
from dpmpi.algorithms.hmv_dgd import HmvDgd
from dpmpi.algorithms.ip_admm import IpAdmm
from dpmpi.algorithms.ldp_admm import LdpAdmm
from dpmpi.algorithms.ldp_gd import LdpGd
from dpmpi.algorithms.ldp_gd_minmax import LdpGdMinmax
from dpmpi.algorithms.momentum import Momentum
from dpmpi.algorithms.one_shot import OneShot
from dpmpi.algorithms.r_admm import RAdmm
from dpmpi.algorithms.rcd import Rcd
from dpmpi.core import Method

ALGORITHMS: dict[str, type[Method]] = {
    "momentum": Momentum,
    "dda": Dda,
    "dp-dda": DpDda,
    "sampled-dda": SampledDda,
    "dgd": Dgd,
    "dp-dgd": DpDgd,
    "hmv-dgd": HmvDgd,
    "one-shot": OneShot,
    "admm": Admm,
    "ip-admm": IpAdmm,
    "dp-admm": DpAdmm,
    "pvp-admm": PvpAdmm,
    "dvp-admm": DvpAdmm,
    "r-admm": RAdmm,
    "ldp-admm": LdpAdmm,
    "ldp-gd": LdpGd,
    "ldp-gd-minmax": LdpGdMinmax,
    "rcd": Rcd,
}
