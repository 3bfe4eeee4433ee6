"""Statistical tests of words that should be uniform."""

import numpy as np
from scipy import stats

SMALLEST_P = 1e-5  # of some hundred tests with fixed keys: a sound generator fails none, a biased one fails at once


def looks_uniform(words):
    """Chi-square on the bytes at each of the eight places, and Kolmogorov-Smirnov on the words."""
    columns = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8).T
    places = [stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in columns]
    whole = stats.kstest(words / 2.0**64, "uniform").pvalue
    return min(*places, whole) > SMALLEST_P
