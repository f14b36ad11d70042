import subprocess
import sys

import pytest
import scipy.stats

from lit_agentrl.reporting.statistics import mean_interval, paired_difference, wilson_interval


def test_wilson_interval_of_a_worked_example():
    # 8 of 10, z = 1.96, z^2 = 3.8416: centre = (0.8 + 0.19208) / 1.38416 = 0.71674,
    # half = 1.96 / 1.38416 * sqrt(0.8 * 0.2 / 10 + 3.8416 / 400) = 1.41602 * 0.16001 = 0.22658
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4)
    assert high == pytest.approx(0.9433, abs=1e-4)


@pytest.mark.parametrize("successes", [0, 1, 7, 20])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_wilson_interval_agrees_with_scipy(successes, confidence):
    expected = scipy.stats.binomtest(successes, 20).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes, 20, confidence=confidence) == pytest.approx(tuple(expected), abs=1e-12)


def test_wilson_interval_without_trials_knows_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_wilson_interval_reaches_exactly_the_ends():
    assert wilson_interval(0, 3)[0] == 0.0
    assert wilson_interval(3, 3)[1] == 1.0


def test_wilson_interval_refuses_more_successes_than_trials():
    with pytest.raises(ValueError, match="between 0 and count=3"):
        wilson_interval(4, 3)


def test_mean_interval_of_a_worked_example():
    # mean 2, sample standard deviation 1, t(0.975, 2) = 4.3027: half width = 4.3027 / sqrt(3) = 2.4841
    interval = mean_interval([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.low == pytest.approx(-0.4841, abs=1e-4)
    assert interval.high == pytest.approx(4.4841, abs=1e-4)
    assert interval.note == ""


def test_mean_interval_agrees_with_scipy():
    values = [0.31, 0.45, 0.40, 0.52]
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    interval = mean_interval(values, confidence=0.9)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected))


def test_one_seed_has_no_interval_and_says_so():
    interval = mean_interval([0.7])
    assert (interval.mean, interval.low, interval.high) == (0.7, None, None)
    assert interval.note == "one seed: no interval"


def test_equal_values_have_no_interval_and_say_so():
    interval = mean_interval([1.0, 1.0, 1.0])
    assert interval.low is None
    assert "no spread" in interval.note


@pytest.mark.parametrize("values", [[], [0.1, float("nan")]])
def test_mean_interval_refuses_what_has_no_mean(values):
    with pytest.raises(ValueError, match="mean_interval needs"):
        mean_interval(values)


def test_paired_difference_agrees_with_scipy():
    a, b = [0.61, 0.55, 0.70, 0.58], [0.50, 0.52, 0.55, 0.54]
    expected = scipy.stats.ttest_rel(a, b)
    difference = paired_difference(a, b)
    assert difference.mean == pytest.approx(0.0825)  # (0.11 + 0.03 + 0.15 + 0.04) / 4
    assert difference.p_value == pytest.approx(expected.pvalue)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_differences_that_agree_up_to_rounding_give_no_p_value():
    difference = paired_difference([0.9, 0.8], [0.3, 0.2])  # both 0.6, one of them off by an ulp
    assert difference.mean == pytest.approx(0.6)
    assert difference.p_value is None
    assert "no spread" in difference.note


def test_paired_difference_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="2 values against 1"):
        paired_difference([1.0, 2.0], [1.0])


def test_statistics_import_no_torch():
    code = "import sys, lit_agentrl.reporting.statistics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
