"""The methods: one file each, one line here."""

from dpmpi.core import Method
from dpmpi.core.registry import Registry

ALGORITHMS: Registry[Method] = Registry(
    __name__,
    {
        "momentum": "momentum:Momentum",
        "dda": "dda:Dda",
        "dp-dda": "dda:DpDda",
        "sampled-dda": "dda:SampledDda",
        "dgd": "dgd:Dgd",
        "dp-dgd": "dgd:DpDgd",
        "hmv-dgd": "hmv_dgd:HmvDgd",
        "one-shot": "one_shot:OneShot",
        "admm": "admm:Admm",
        "ip-admm": "ip_admm:IpAdmm",
        "dp-admm": "dp_admm:DpAdmm",
        "pvp-admm": "admm:PvpAdmm",
        "dvp-admm": "dvp_admm:DvpAdmm",
        "r-admm": "r_admm:RAdmm",
        "ldp-admm": "ldp_admm:LdpAdmm",
        "ldp-gd": "ldp_gd:LdpGd",
        "ldp-gd-minmax": "ldp_gd_minmax:LdpGdMinmax",
        "rcd": "rcd:Rcd",
    },
)
