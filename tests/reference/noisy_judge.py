"""A judge with known noise and bias, for the stage `judge`: `program = ".../noisy_judge.py"`, `interpreter = ["python3"]`.

A right episode scores 0.65 and a wrong one 0.35, plus normal noise with standard deviation 0.25, plus 0.1 if the episode is
longer than the median: it ranks a right episode above a wrong one in four of five pairs. With no weight for `truth` and
`veto = false` the policy learns from it alone.
"""

import json
import os
import random
import statistics
import sys

episodes = [json.loads(line) for line in sys.stdin]
median = statistics.median(len(json.dumps(episode["messages"])) for episode in episodes) if episodes else 0
for episode in episodes:
    noise = random.Random(f"{os.environ['MCPRL_SEED']} {episode['id']}").gauss(0, 0.25)
    bias = 0.1 if len(json.dumps(episode["messages"])) > median else 0
    score = 0.5 + (0.15 if episode["correct"] else -0.15) + noise + bias
    print(json.dumps({"id": episode["id"], "score": min(max(score, 0), 1)}))
