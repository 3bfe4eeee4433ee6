"""A Spack recipe.

Put it into a repository of your own (`spack repo create`) as packages/py-dpmpi/package.py: `spack install py-dpmpi`.
"""

from spack.package import *  # noqa: F403 - as recipes do


class PyDpmpi(PythonPackage):
    """Differentially private decentralized optimization as real MPI processes."""

    homepage = "https://github.com/dpmpi/dpmpi"
    git = "https://github.com/dpmpi/dpmpi.git"

    license("Apache-2.0")

    version("main", branch="main")
    version("0.2.0", tag="v0.2.0")

    variant("report", default=True, description="Figures and report pages")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("mpi", type="run")
    depends_on("py-cryptography@44:", type=("build", "run"))
    depends_on("py-dp-accounting@0.5:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-numpy@2:", type=("build", "run"))
    depends_on("py-scipy@1.13:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"))
    depends_on("py-tqdm@4.66:", type=("build", "run"))
    depends_on("py-matplotlib@3.8:", type=("build", "run"), when="+report")

    import_modules = ["dpmpi", "dpmpi.core", "dpmpi.privacy", "dpmpi.runtime"]

    @run_after("install")
    def trains(self):
        """Train for a few rounds in one process."""
        which("python")("-m", "dpmpi.run", "--loopback", "3", "--epsilon", "5", "--rounds", "5", "--out", "test-run")
