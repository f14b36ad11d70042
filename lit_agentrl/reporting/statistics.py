"""Intervals and paired tests for a handful of seeds. Free of torch, so that reading runs is quick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from scipy.special import stdtr, stdtrit


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanInterval:
    """A mean over seeds with its t interval, where there is one."""

    mean: float
    low: float | None
    high: float | None
    count: int
    note: str = ""
    """Why there is no interval; empty when there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """The mean of paired differences, its t interval and its two-sided p-value, where they exist."""

    mean: float
    low: float | None
    high: float | None
    p_value: float | None
    count: int
    note: str = ""
    """Why there is no interval and no p-value; empty when there are."""


def wilson_interval(successes: int, count: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a success rate.

    Unlike the normal approximation it stays inside [0, 1] and does not collapse at rates of 0 and 1 (E. B. Wilson,
    "Probable inference, the law of succession, and statistical inference", JASA 22, 1927).

    Args:
        successes: Number of successes, 0 to `count`.
        count: Number of trials. With 0 trials nothing is known: (0, 1).
        confidence: Coverage, inside (0, 1).

    Raises:
        ValueError: If the counts or the confidence are out of range.
    """
    _check_confidence(confidence)
    if not 0 <= successes <= count:
        raise ValueError(f"successes must be between 0 and count={count}, not {successes}")
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / count
    scale = 1 + z * z / count
    centre = (rate + z * z / (2 * count)) / scale
    half_width = z / scale * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    # At the ends the bound is exactly 0 or 1; floating point may miss it by an ulp.
    low = 0.0 if successes == 0 else centre - half_width
    high = 1.0 if successes == count else centre + half_width
    return low, high


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> MeanInterval:
    """Return the mean and its t interval over independent values, usually one per seed.

    One value, or values that do not differ at all, have no interval; `note` says so.

    Raises:
        ValueError: If there are no values, one is not finite, or the confidence is out of range.
    """
    _check_confidence(confidence)
    if not values:
        raise ValueError("mean_interval needs at least one value")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"mean_interval needs finite values, not {list(values)}")
    mean = fmean(values)
    note = _why_no_interval(values)
    if note:
        return MeanInterval(mean=mean, low=None, high=None, count=len(values), note=note)
    half_width = float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * stdev(values) / math.sqrt(len(values))
    return MeanInterval(mean=mean, low=mean - half_width, high=mean + half_width, count=len(values))


def paired_difference(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> PairedDifference:
    """Return the mean of `a[i] - b[i]` with its t interval and the two-sided p-value of the paired t test.

    Raises:
        ValueError: If the lengths differ, there are no pairs, or a value is not finite.
    """
    if len(a) != len(b):
        raise ValueError(f"paired_difference needs pairs: {len(a)} values against {len(b)}")
    interval = mean_interval([x - y for x, y in zip(a, b, strict=True)], confidence=confidence)
    p_value = None
    if interval.low is not None and interval.high is not None:
        half_width = (interval.high - interval.low) / 2
        statistic = interval.mean / half_width * float(stdtrit(interval.count - 1, 0.5 + confidence / 2))
        p_value = 2 * float(stdtr(interval.count - 1, -abs(statistic)))
    return PairedDifference(
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        p_value=p_value,
        count=interval.count,
        note=interval.note,
    )


def _why_no_interval(values: Sequence[float]) -> str:
    if len(values) == 1:
        return "one seed: no interval"
    # A spread of rounding noise (0.9 - 0.3 against 0.8 - 0.2) would give an interval of zero width and p = 0.
    if math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12):
        return "no spread between seeds: no interval"
    return ""


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be inside (0, 1), not {confidence}")
