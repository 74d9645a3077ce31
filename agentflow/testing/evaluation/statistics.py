"""Means and rates with confidence intervals (95 %).

The unit is the case: repeats make the mean of a case more exact, but are not independent, so they do not count as cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

_Z: Final = 1.959964  # the quantile of the normal distribution for two-sided intervals
_T: Final = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The same quantiles of Student's t for 1 to 10 degrees of freedom."""


class Estimate(NamedTuple):
    """A mean and its 95 % confidence interval, which is unknown (None) if there is only one value.

    Attributes:
        mean: The mean.
        low: The lower bound.
        high: The upper bound.
    """

    mean: float
    low: float | None
    high: float | None


def rate_of(rate: float, n: int) -> Estimate:
    """Return the estimate of a rate (Wilson's interval), such as the mean of the rates of `n` cases.

    Example:
        >>> [round(each, 3) for each in rate_of(0.8, 20)]
        [0.8, 0.584, 0.919]
    """
    scale = 1 + _Z**2 / n
    middle = (rate + _Z**2 / (2 * n)) / scale
    half = _Z * math.sqrt(max(0.0, rate * (1 - rate)) / n + _Z**2 / (4 * n**2)) / scale
    return Estimate(rate, max(0.0, middle - half), min(1.0, middle + half))


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the estimate of a mean (Student's t).

    Example:
        >>> [round(each, 3) for each in mean_of([1, 2, 3])]
        [2.0, -0.484, 4.484]
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None, None)
    half = _t(n - 1) * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return Estimate(mean, mean - half, mean + half)


def _t(freedom: int) -> float:
    if freedom <= len(_T):
        return _T[freedom - 1]
    # The Cornish-Fisher expansion, which is exact to 0.1 % from 11 degrees of freedom on.
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
