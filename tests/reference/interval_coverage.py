"""How often 95 % intervals of a mean gain hold the truth, where questions of one family go together: prints a table.

Families have 1 to 2m - 1 questions, and a gain of their own with standard deviation s. `single` resamples questions,
`families` resamples families at 2.5 and 97.5 %, `expanded` does what `src/eval/statistics.rs` does, and `t` is the
clustered standard error with Student's quantile.
"""

import numpy as np
from scipy import stats

DRAWS, RESAMPLES = 1500, 1000
rng = np.random.default_rng(1)


def families(count, m, s):
    """The outcomes of each family's questions: 1 better, -1 worse, 0 alike."""
    sizes = rng.integers(1, 2 * m, size=count)
    better = np.clip(0.25 + s * rng.standard_normal(count), 0, 1)
    uniform = [rng.random(size) for size in sizes]
    return [np.where(u < p * 0.95, 1, np.where(u > 0.95, -1, 0)) for u, p in zip(uniform, better)]


def truth(s):
    better = np.clip(0.25 + s * np.random.default_rng(0).standard_normal(2_000_000), 0, 1)
    return 0.95 * better.mean() - 0.05


def resampled(sums, counts, tails):
    weights = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
    means = (weights @ sums) / (weights @ counts)
    return [np.quantile(means, [tail, 1 - tail]) for tail in tails]


def coverage(count, m, s):
    target, hits = truth(s), dict.fromkeys(["single", "families", "expanded", "t"], 0)
    quantile = stats.t.ppf(0.975, count - 1)
    expanded_tail = stats.norm.cdf(-np.sqrt(count / (count - 1)) * quantile)
    for _ in range(DRAWS):
        outcomes = families(count, m, s)
        values = np.concatenate(outcomes)
        sums = np.array([of.sum() for of in outcomes], float)
        counts = np.array([len(of) for of in outcomes])
        mean = values.mean()
        error = np.sqrt(count / (count - 1) * ((sums - mean * counts) ** 2).sum()) / len(values)
        percentile, expanded = resampled(sums, counts, [0.025, expanded_tail])
        (single,) = resampled(values, np.ones(len(values)), [0.025])
        student = [mean - quantile * error, mean + quantile * error]
        for name, (low, high) in zip(hits, [single, percentile, expanded, student]):
            hits[name] += low <= target <= high
    return {name: round(100 * hit / DRAWS, 1) for name, hit in hits.items()}


if __name__ == "__main__":
    for s in (0.0, 0.15, 0.3):
        for count, m in ((10, 12), (20, 6), (45, 3)):
            print(s, count, coverage(count, m, s), flush=True)
