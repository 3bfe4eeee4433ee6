"""Estimators with scikit-learn's conventions, trained with differential privacy by simulated agents, or under mpirun.

    from dpmpi.sklearn import BoundedScaler, PrivateLogisticRegression, make_private_pipeline

    model = make_private_pipeline(BoundedScaler((low, high)), PrivateLogisticRegression(epsilon=1.0, bounds=1.0))
    model.fit(X, y)

This package needs scikit-learn (`pip install 'dpmpi[sklearn]'`). docs/sklearn.md describes it.
"""

from dpmpi.sklearn.bounds import BoundedScaler, make_private_pipeline
from dpmpi.sklearn.estimators import PrivateLinearSVC, PrivateLogisticRegression, PrivateRidge
from dpmpi.sklearn.fits import NoiseWarning, PrivacyWarning, forget_fits

__all__ = [
    "BoundedScaler",
    "NoiseWarning",
    "PrivacyWarning",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "forget_fits",
    "make_private_pipeline",
]
