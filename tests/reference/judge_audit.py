"""Measures of a judge, computed with SciPy: `python tests/reference/judge_audit.py`.

Writes `fixtures/judge_audit.json`, which the tests of `crates/mcprl-judge/src/rank.rs` and `src/stage/judge/audit.rs` read.
"""

import itertools
import json
import pathlib

import numpy as np
from scipy import stats

OUT = pathlib.Path(__file__).parent / "fixtures" / "judge_audit.json"
rng = np.random.default_rng(7)


def number(value):
    return None if np.isnan(value) else float(value)


def ranks():
    samples = [([1, 1, 1], [1, 2, 3]), ([1, 2], [2, 1]), ([0.5, 0.5, 1, 0], [0, 1, 1, 0])]
    for size in (5, 9, 30):
        samples.append((rng.integers(0, size, size) / 10, rng.integers(0, size, size) / 7))
    rows = []
    for a, b in samples:
        a, b = [float(x) for x in a], [float(x) for x in b]
        with np.errstate(all="ignore"):
            rho, tau = stats.spearmanr(a, b).statistic, stats.kendalltau(a, b).statistic
        rows.append({"a": a, "b": b, "spearman": number(rho), "kendall": number(tau)})
    return rows


def sign(difference, band):
    return 0 if abs(difference) <= band + 1e-12 else int(np.sign(difference))


def group(size, orders, repeats):
    truth = [None if rng.random() < 0.1 else bool(rng.random() < 0.5) for _ in range(size)]
    rounds = []
    for order in range(orders):
        places = rng.permutation(size)
        for repeat in range(repeats):
            scores = np.round(np.clip([0.3 + 0.4 * bool(right) for right in truth] + rng.normal(0, 0.3, size), 0, 1), 1)
            rounds.append({
                "order": order, "repeat": repeat,
                "places": [int(place) for place in places], "scores": [float(score) for score in scores],
            })
    return {"correct": truth, "lengths": [int(x) for x in rng.integers(1, 6, size)], "rounds": rounds}


def measures(groups, band):
    cases = {name: [] for name in (
        "rank_correlation", "pairwise_accuracy", "length_bias", "position_bias", "order_agreement", "repeat_agreement",
    )}
    for each in groups:
        truth, lengths, rounds = each["correct"], each["lengths"], each["rounds"]
        size = len(truth)
        scores = np.mean([round["scores"] for round in rounds], axis=0)
        known = [i for i in range(size) if truth[i] is not None]
        if len({truth[i] for i in known}) == 2:
            rho = stats.spearmanr(scores[known], [float(truth[i]) for i in known]).statistic
            cases["rank_correlation"].append(0.0 if np.isnan(rho) else rho)
        for i, j in itertools.combinations(range(size), 2):
            if truth[i] is None or truth[j] is None:
                continue
            first = sign(scores[i] - scores[j], band)
            if truth[i] != truth[j]:
                cases["pairwise_accuracy"].append((1 + (first if truth[i] else -first)) / 2)
            elif lengths[i] != lengths[j]:
                cases["length_bias"].append(first * np.sign(lengths[i] - lengths[j]))
        for i in range(size):
            halves = ([], [])
            for round in rounds:
                if 2 * round["places"][i] + 1 != size:
                    halves[int(2 * round["places"][i] + 1 > size)].append(round["scores"][i])
            if halves[0] and halves[1]:
                cases["position_bias"].append(np.mean(halves[0]) - np.mean(halves[1]))
        for a, b in itertools.combinations(rounds, 2):
            if (a["order"] == b["order"]) == (a["repeat"] == b["repeat"]):
                continue
            name = "repeat_agreement" if a["order"] == b["order"] else "order_agreement"
            for i, j in itertools.combinations(range(size), 2):
                same = sign(a["scores"][i] - a["scores"][j], band) == sign(b["scores"][i] - b["scores"][j], band)
                cases[name].append(float(same))
    return {name: [float(np.mean(values)), len(values)] for name, values in cases.items() if values}


def audits():
    rows = []
    for band, orders, repeats, sizes in ((0.0, 2, 2, [4, 5, 8, 2]), (0.1, 3, 1, [6, 7, 3]), (0.2, 1, 3, [4] * 6)):
        groups = [group(size, orders, repeats) for size in sizes]
        rows.append({"band": band, "groups": groups, "measures": measures(groups, band)})
    return rows


OUT.write_text(json.dumps({"ranks": ranks(), "audits": audits()}) + "\n")
