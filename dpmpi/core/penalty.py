"""The regulariser h of all ranks as methods see it, and the base of a penalty of the user's own."""

from __future__ import annotations

from dpmpi.core.messages import Array
from dpmpi.errors import ConfigError


class Penalty:
    """A convex penalty h; infinite outside its domain, if it has one.

    One of the user's own needs `value` and `prox`. Dual steps follow from them: for A, gamma > 0

        argmin_x <z, x> + A h(x) + gamma |x|^2 / 2 = argmin_x h(x) + |x + z/gamma|^2 / (2 A/gamma).            (1)
    """

    def value(self, x: Array) -> float:
        """Return h(x); infinity outside the domain."""
        raise NotImplementedError

    def prox(self, v: Array, step: float, out: Array) -> None:
        """Write argmin_x h(x) + |x - v|^2 / (2 step) to `out`."""
        raise NotImplementedError

    def dual_step(self, z: Array, A: float, gamma: float, out: Array) -> None:
        """Write argmin_x <z, x> + A h(x) + gamma |x|^2 / 2 to `out`."""
        if not (A > 0.0 and gamma > 0.0):
            found = f"A = {A} and gamma = {gamma}"
            raise ConfigError(f"expected A > 0 and gamma > 0 for a penalty of one's own, found {found}: set gamma > 0")
        self.prox(z / -gamma, A / gamma, out)  # (1)

    def add_dual_steps(self, z: Array, a: Array, A: Array, gamma: Array, total: Array, scratch: Array) -> None:
        """Add sum_s a[s] dual_step(z, A[s], gamma[s]) to `total`."""
        for a_s, A_s, gamma_s in zip(a, A, gamma, strict=True):
            self.dual_step(z, float(A_s), float(gamma_s), scratch)
            scratch *= a_s
            total += scratch

    def project(self, v: Array, out: Array, shrink: float = 0.0) -> None:
        """Write argmin_x |x - v|^2 / 2 + shrink |x|_1 over the domain to `out`."""
        raise ConfigError("expected a penalty l2, l1, elastic or none to project by, found one of your own: use prox")
