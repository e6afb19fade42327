"""Reference numbers for `src/eval`: SciPy's exact tests and bootstrap, statsmodels' clustered errors.

Writes fixtures/statistics.json:

    {"scipy", "statsmodels": versions,
     "sign_test": [{"better", "worse", "p"}],
     "intervals": [{"values": [..], "clusters": [..], "design_effect",
         "difference": [low, high], "rate": [low, high]}],          95 %, of interval_coverage.py; no rate of negative values
     "power": [{"tasks", "discordance", "difference"}],             found by McNemar's test with 80 % power
     "clustered": [{"values": [..], "clusters": [..],               the cluster of each value, from 0
         "standard_error",                                          of the mean, between clusters (statsmodels)
         "student": [low, high],                                    95 % by Student's t with G - 1 degrees (statsmodels)
         "bootstrap": [low, high],                                  clusters resampled 100 000 times, expanded percentiles:
                                                                    agrees to within resampling error only
         "sign_flip": p or null}],                                  exact, null where there are too many clusters for SciPy
     "holm": [{"p": [..], "adjusted": [..]}]}
"""

import json
import pathlib

import interval_coverage
import numpy
import scipy
import statsmodels
import statsmodels.api
from scipy.optimize import brentq
from scipy.stats import binomtest, bootstrap, norm, permutation_test, t
from statsmodels.stats.multitest import multipletests

PAIRS = [(0, 0), (1, 0), (5, 0), (6, 0), (0, 8), (7, 3), (12, 5), (41, 3), (60, 60), (100, 61), (1500, 1300)]
# Values, and the sizes of the clusters that these come in.
VALUES = [
    ([0] * 20, [1] * 20),
    ([0] * 60, [5] * 12),
    ([1] * 40, [4] * 10),
    ([1] + [0] * 59, [5] * 12),
    ([1] * 12 + [-1] * 3 + [0] * 85, [1] * 100),
    ([1, 1, 1, 0, -1] * 12, [1, 9, 5, 2, 8, 4, 6, 3, 7, 10, 5]),
    ([0.25, 0, 1, 0.5, 0, 0.75] * 10, [2] * 30),
    ([0.5] * 6 + [0] * 54, [6] * 10),
    ([1, 0, 0, 1], [1, 1, 1, 1]),
]
POWER = [(20, 0.3), (60, 0.1), (100, 0.2), (100, 0.02), (400, 0.5), (37.5, 0.25)]
P_VALUES = [[0.04], [0.01, 0.04, 0.03, 0.005], [0.5, 0.5, 1.0], [0.02, 0.02, 0.3, 0.0, 0.9]]
# Clusters, questions in the largest, episodes per question, mean gain, its spread between clusters.
SHAPES = [(10, 20, 1, 0.1, 0.2), (12, 14, 4, 0.2, 0.2), (16, 9, 1, 0.0, 0.0), (45, 4, 1, 0.4, 0.3), (120, 1, 1, 0.1, 0.0)]


def sign_test(better, worse):
    p = binomtest(better, better + worse).pvalue if better + worse else 1.0
    return {"better": better, "worse": worse, "p": p}


def ends(values, sizes):
    row, sizes = numpy.array([values], float), numpy.array(sizes)
    pair = lambda found: [float(end[0]) for end in found]
    return {
        "values": row[0].tolist(),
        "clusters": numpy.repeat(numpy.arange(len(sizes)), sizes).tolist(),
        "design_effect": float(interval_coverage.design_effect(row, sizes)[0]),
        "difference": pair(interval_coverage.difference(row, sizes)),
        "rate": pair(interval_coverage.rate(row, sizes)) if row.min() >= 0 else None,
    }


def power(tasks, discordance):
    def excess(difference):
        share = max(discordance, difference)
        found = norm.cdf((difference * tasks**0.5 - norm.ppf(0.975) * share**0.5) / (share - difference**2) ** 0.5)
        return found - 0.8

    return {"tasks": tasks, "discordance": discordance, "difference": brentq(excess, 1e-6, 1 - 1e-9, xtol=1e-14)}


def draw(rng, clusters, largest, episodes, mean, spread):
    values, members = [], []
    for cluster in range(clusters):
        gain = numpy.clip(mean + spread * rng.standard_normal(), -0.45, 0.45)
        for _ in range(rng.integers(1, largest + 1)):
            base, trained = rng.binomial(episodes, [0.5 - gain / 2, 0.5 + gain / 2])
            values.append(float(trained - base) / episodes)
            members.append(cluster)
    return numpy.array(values), numpy.array(members)


def clustered(seed, shape):
    rng = numpy.random.default_rng(seed)
    values, members = draw(rng, *shape)
    groups = shape[0]
    fit = statsmodels.api.OLS(values, numpy.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": members}, use_t=True
    )
    sums = numpy.bincount(members, weights=values)
    counts = numpy.bincount(members)

    def mean(sums, counts, axis=-1):
        return sums.sum(axis=axis) / counts.sum(axis=axis)

    tail = norm.cdf(-numpy.sqrt(groups / (groups - 1)) * t.ppf(0.975, groups - 1))
    interval = bootstrap(
        (sums, counts), mean, paired=True, vectorized=True, n_resamples=100_000, batch=1000, rng=rng,
        method="percentile", confidence_level=1 - 2 * tail,
    ).confidence_interval
    exact = None
    if groups <= 16:
        exact = permutation_test(
            (sums,), lambda sums, axis: numpy.round(sums.sum(axis=axis), 9), permutation_type="samples",
            n_resamples=numpy.inf, vectorized=True, batch=4096,
        ).pvalue
    return {
        "values": values.tolist(),
        "clusters": members.tolist(),
        "standard_error": fit.bse[0],
        "student": fit.conf_int()[0].tolist(),
        "bootstrap": [interval.low, interval.high],
        "sign_flip": exact,
    }


def main():
    fixture = {
        "scipy": scipy.__version__,
        "statsmodels": statsmodels.__version__,
        "sign_test": [sign_test(*pair) for pair in PAIRS],
        "intervals": [ends(*sample) for sample in VALUES],
        "power": [power(*exam) for exam in POWER],
        "clustered": [clustered(seed, shape) for seed, shape in enumerate(SHAPES)],
        "holm": [{"p": p, "adjusted": multipletests(p, method="holm")[1].tolist()} for p in P_VALUES],
    }
    path = pathlib.Path(__file__).parent / "fixtures" / "statistics.json"
    path.write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
