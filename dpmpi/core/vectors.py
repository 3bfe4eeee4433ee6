"""Linear combinations in place, so that a step of a method reads like its equation and allocates nothing."""

from __future__ import annotations

import numpy as np

from dpmpi.core.messages import Array


def combine(out: Array, *terms: tuple[float, Array], scratch: Array | None = None, over: float = 1.0) -> None:
    """Write (a x + b y + ...) / over to `out`, given as (a, x), (b, y), ...

    Products are added up from left to right, each rounded. `out` may be the vector of the first term, and of no other.
    A later term whose factor is neither 1 nor -1 is multiplied in `scratch`, which may be that term's own vector.
    """
    (factor, vector), *rest = terms
    if factor == 1.0:
        if vector is not out:
            np.copyto(out, vector)
    else:
        np.multiply(vector, factor, out=out)
    for factor, vector in rest:
        if factor == 1.0:
            out += vector
        elif factor == -1.0:
            out -= vector
        elif scratch is not None and scratch is not out:
            out += np.multiply(vector, factor, out=scratch)
        else:
            found = "none" if scratch is None else "out itself"
            raise ValueError(f"expected a scratch vector for a later term with a factor, found {found}: pass scratch=")
    if over != 1.0:
        out /= over
