"""How often the 95 % intervals of `src/eval/statistics.rs` hold the truth, and how wide they are beside a bootstrap.

Prints a line for each number of tasks and size of clusters: the lowest coverage of the interval of a paired difference and of
that of a success rate over all rates, correlations and numbers of trials, and the mean width of the difference's interval
and of the percentile bootstrap of clusters, with the bootstrap's lowest coverage. Fails if a coverage is below 93 %. A
coverage below 94.5 % in 1,000 samples is measured again in 20,000, with a standard error of 0.18 points; three of them are
allowed for.
"""

import itertools
import sys

import numpy as np
from scipy import stats

PRIOR, ADDED = 2.0, 1.1
LEAST, SLACK = 93.0, 0.54
SAMPLES, AGAIN, RESAMPLED = 1000, 20_000, 200
TASKS = (20, 60, 100, 400)
SIZES = {"1": [1], "2": [2], "5": [5], "1-3": [1, 3, 2], "1-9": [1, 9, 5, 2, 8, 4, 6, 3, 7]}
CORRELATIONS, TRIALS = (0, 0.3, 1), (1, 2, 4)
# Shares of tasks that only the later policy solves, that only the earlier solves, and that both solve.
PATTERNS = [(0, 0, 0), (0, 0, 1)]
PATTERNS += [(flips / 2, flips / 2, 0.5 - flips / 2) for flips in (0.01, 0.02, 0.05, 0.1, 0.4, 1)]
PATTERNS += [(share, 0, 0.5 - share / 2) for share in (0.003, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.5)]
PATTERNS += [(share, 0, 0) for share in (0.1, 0.8, 0.95, 0.99, 1)]
PATTERNS += [(0, 0.03, 0.97), (0, 0.05, 0.9), (0.075, 0.025, 0.45), (0.8, 0.01, 0.1), (0.3, 0.2, 0.25), (0.1, 0.02, 0.44)]
rng = np.random.default_rng(1)


def sums(values, sizes):
    """Of each cluster; a row of values is a sample, and the values of a cluster are neighbours."""
    return np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=1)


def design_effect(values, sizes):
    """From the correlation within clusters, shrunk towards 1."""
    residuals = values - values.mean(1, keepdims=True)
    several = sizes > 1
    size = (sizes**2).sum() / sizes.sum()
    if not several.any():
        return np.ones(len(values))
    total, squares = sums(residuals, sizes)[:, several], sums(residuals**2, sizes)[:, several]
    seen = squares.sum(1)
    with np.errstate(invalid="ignore"):
        correlation = np.clip(((total**2 - squares) / (sizes[several] - 1)).sum(1) / seen, 0, 1)
        weight = np.minimum(seen**2 / (squares**2).sum(1), seen)
    none = seen < 1e-9
    correlation, weight = np.where(none, 1, correlation), np.where(none, 0, weight)
    return 1 + (weight * correlation + PRIOR) / (weight + PRIOR) * (size - 1)


def interval(values, sizes, added, ends):
    clusters, effective = len(sizes) + len(added), sizes.sum() ** 2 / (sizes**2).sum()
    weight = ADDED * design_effect(values, sizes)[:, None]
    counts = np.hstack([np.broadcast_to(sizes, (len(values), len(sizes))), np.repeat(weight, len(added), axis=1)])
    totals = np.hstack([sums(values, sizes), weight * np.array(added)])
    mean = totals.sum(1) / counts.sum(1)
    squares = ((totals - mean[:, None] * counts) ** 2).sum(1)
    error = np.sqrt(squares * clusters / (clusters - 1)) / counts.sum(1)
    half = stats.t.ppf(0.975, effective - 1) * error
    return np.maximum(mean - half, ends[0]), np.minimum(mean + half, ends[1])


def difference(values, sizes):
    return interval(values, sizes, [-1, 1], (-1, 1))


def rate(values, sizes):
    return interval(values, sizes, [0, 0, 1, 1], (0, 1))


def bootstrap(values, sizes):
    count = len(sizes)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=400)
    means = (sums(values, sizes) @ weights.T) / (weights @ sizes)
    tail = stats.norm.cdf(-np.sqrt(count / (count - 1)) * stats.t.ppf(0.975, count - 1))
    return np.quantile(means, [tail, 1 - tail], axis=1)


def outcomes(samples, sizes, pattern, correlation, trials):
    """The earlier and the later policy's share of right trials of each task."""
    gain, loss, both = pattern
    cells = np.array([gain, loss, both, max(1 - gain - loss - both, 0)])
    shape = (samples, len(sizes))
    if correlation == 0:
        cells = np.broadcast_to(cells, (*shape, 4))
    elif correlation == 1:
        cells = rng.multinomial(1, cells / cells.sum(), size=shape)
    else:
        # Each cluster has its own rates, so distributed that two of its tasks have this correlation.
        draws = rng.gamma(np.broadcast_to(cells * (1 - correlation) / correlation, (*shape, 4))) + 1e-300 * (cells > 0)
        cells = draws / draws.sum(-1, keepdims=True)
    ends = np.repeat(np.cumsum(cells, -1)[:, :, :3], sizes, axis=1)
    cell = (rng.random(ends.shape[:2])[:, :, None] >= ends - 1e-12).sum(-1)
    earlier, later = (cell == 1) | (cell == 2), (cell == 0) | (cell == 2)
    if trials == 1:
        return earlier.astype(float), later.astype(float)

    def repeated(right, share):
        """Some trials go as the task does, and some as any."""
        as_task = rng.binomial(trials, 0.7, size=right.shape)
        return (as_task * right + rng.binomial(trials - as_task, share)) / trials

    return repeated(earlier, loss + both), repeated(later, gain + both)


def covered(ends, truth):
    return 100 * ((ends[0] <= truth + 1e-9) & (truth - 1e-9 <= ends[1])).mean()


def measured(sizes, case, samples):
    """Coverage of the difference and of the rate, and both widths and the bootstrap's coverage."""
    gain, loss, both = case[0]
    earlier, later = outcomes(samples, sizes, *case)
    ours, old = difference(later - earlier, sizes), bootstrap((later - earlier)[:RESAMPLED], sizes)
    widths = [np.mean(ends[1] - ends[0]) for ends in (ours, old)]
    return [covered(ours, gain - loss), covered(rate(later, sizes), gain + both), *widths, covered(old, gain - loss)]


def designs():
    for tasks, (name, pattern) in itertools.product(TASKS, SIZES.items()):
        sizes, cycle = [], itertools.cycle(pattern)
        while sum(sizes) < tasks:
            sizes.append(min(next(cycle), tasks - sum(sizes)))
        if len(sizes) >= 10:
            yield name, np.array(sizes)
    yield "1-23", np.array([1, 23, 12, 4, 17, 8, 20, 6, 15, 10])


def main():
    lowest = 100
    print("tasks  sizes  clusters  difference  rate   width  bootstrap  its coverage")
    for name, sizes in designs():
        correlations = CORRELATIONS if sizes.max() > 1 else (0,)
        found = []
        for case in itertools.product(PATTERNS, correlations, TRIALS):
            result = measured(sizes, case, SAMPLES)
            if min(result[:2]) < 94.5:
                result[:2] = measured(sizes, case, AGAIN)[:2]
            found.append(result)
            if min(result[:2]) < LEAST:
                print("  below:", case, result[:2])
        found = np.array(found)
        least, (ours, old) = found.min(0), 100 * found.mean(0)[2:4]
        lowest = min(lowest, *least[:2])
        line = f"{sizes.sum():5}  {name:>5}  {len(sizes):8}  {least[0]:10.1f}  {least[1]:4.1f}  {ours:6.1f}  {old:9.1f}  {least[4]:12.1f}"
        print(line, flush=True)
    print(f"lowest coverage: {lowest:.1f} %")
    sys.exit(lowest < LEAST - SLACK)


if __name__ == "__main__":
    main()
