"""Reference numbers for `src/eval`: SciPy's exact binomial test, Wilson interval and percentile bootstrap.

Writes fixtures/statistics.json:

    {"scipy": version,
     "sign_test": [{"better", "worse", "p"}],
     "wilson": [{"successes", "trials", "low", "high"}],            95 %
     "bootstrap": [{"values": [..], "low", "high"}]}                95 % percentile interval of the mean, 100 000
                                                                    resamples; agrees to within resampling error only
"""

import json
import pathlib

import numpy
import scipy
from scipy.stats import binomtest, bootstrap

PAIRS = [(0, 0), (1, 0), (5, 0), (6, 0), (0, 8), (7, 3), (12, 5), (41, 3), (60, 60), (100, 61), (1500, 1300)]
RATES = [(0, 10), (10, 10), (3, 8), (45, 120), (106, 120), (999, 1000), (1, 1)]


def main():
    def sign_test(better, worse):
        p = binomtest(better, better + worse).pvalue if better + worse else 1.0
        return {"better": better, "worse": worse, "p": p}

    def wilson(successes, trials):
        interval = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        return {"successes": successes, "trials": trials, "low": interval.low, "high": interval.high}

    def percentile(values, seed):
        rng = numpy.random.default_rng(seed)
        found = bootstrap((values,), numpy.mean, n_resamples=100_000, method="percentile", batch=1000, rng=rng)
        interval = found.confidence_interval
        return {"values": values, "low": interval.low, "high": interval.high}

    differences = [[1.0] * 41 + [-1.0] * 3 + [0.0] * 76, [0.25, -0.5, 0.0, 1.0, 0.75, 0.25, -0.25, 0.5, 0.0, 0.0]]
    fixture = {
        "scipy": scipy.__version__,
        "sign_test": [sign_test(*pair) for pair in PAIRS],
        "wilson": [wilson(*rate) for rate in RATES],
        "bootstrap": [percentile(values, seed) for seed, values in enumerate(differences)],
    }
    path = pathlib.Path(__file__).parent / "fixtures" / "statistics.json"
    path.write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
