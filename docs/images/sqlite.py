"""Draws docs/images/sqlite.svg: the success of a run over its iterations, and its held-out comparison.

    mcprl run pipelines/sqlite.toml > verdict.txt && mcprl show latest --json > run.json
    python3 docs/images/sqlite.py run.json verdict.txt > docs/images/sqlite.svg
"""

import json
import re
import sys

run = json.load(open(sys.argv[1]))
stages = run if isinstance(run, list) else run["stages"]
success = [
    stage["metrics"]["success"]
    for stage in stages
    if re.fullmatch(r"train\[\d+\]/rollout", stage["id"]) and "success" in stage["metrics"]
]
row = re.compile(r"^(\S+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([+-][\d.]+) \[\s*([+-]?\d+), +([+-]?\d+)\]", re.M)
table = row.findall(open(sys.argv[2]).read())
names = {"a": "unseen entities", "b": "unseen phrasings", "c": "unseen families", "all": "all held-out tasks"}

WIDTH, HEIGHT = 860, 290
left, top, plot_width, plot_height = 48, 46, 370, 200
parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
    'font-family="system-ui, -apple-system, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="13">',
    "<title>Success over the iterations of a run, and base against trained on held-out tasks</title>",
    "<style>text { fill: #1f2328 } .small { font-size: 12px; fill: #57606a } .title { font-weight: 600 } "
    ".grid { stroke: #d0d7de; stroke-width: 1 } .end { text-anchor: end } .middle { text-anchor: middle }</style>",
    f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    f'<text class="title" x="{left}" y="24">Success in training (128 rollouts or more per iteration)</text>',
]
for percent in (0, 25, 50, 75, 100):
    y = top + plot_height * (1 - percent / 100)
    parts.append(f'<line class="grid" x1="{left}" x2="{left + plot_width}" y1="{y:.1f}" y2="{y:.1f}"/>')
    parts.append(f'<text class="small end" x="{left - 6}" y="{y + 4:.1f}">{percent} %</text>')
x = [left + plot_width * index / max(1, len(success) - 1) for index in range(len(success))]
y = [top + plot_height * (1 - value) for value in success]
line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))
parts.append(f'<polyline points="{line}" fill="none" stroke="#0969da" stroke-width="2"/>')
parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="#0969da"/>' for a, b in zip(x, y)]
for index in (0, len(success) // 2, len(success) - 1):
    parts.append(f'<text class="small middle" x="{x[index]:.1f}" y="{top + plot_height + 18}">{index + 1}</text>')
parts.append(f'<text class="small middle" x="{left + plot_width / 2}" y="{top + plot_height + 36}">iteration</text>')

right, bar_width = 470, 230
parts.append(f'<text class="title" x="{right}" y="24">Held-out tasks: <tspan fill="#8c959f">base</tspan> and <tspan fill="#1a7f37">trained</tspan>, success in %</text>')
for index, (split, count, base, trained, gain, low, high) in enumerate(table):
    y0 = top + 4 + index * 52
    parts.append(f'<text x="{right}" y="{y0 + 10}">{names.get(split, split)} <tspan class="small">({count})</tspan></text>')
    for offset, value, colour in ((16, base, "#afb8c1"), (29, trained, "#1a7f37")):
        parts.append(f'<rect x="{right}" y="{y0 + offset}" width="{bar_width * float(value) / 100:.1f}" height="11" fill="{colour}"/>')
        parts.append(f'<text class="small" x="{right + bar_width * float(value) / 100 + 5:.1f}" y="{y0 + offset + 10}">{value}</text>')
    parts.append(f'<text class="end" x="{WIDTH - 12}" y="{y0 + 32}">{gain} [{low}, {high}]</text>')
parts.append(f'<text class="small end" x="{WIDTH - 12}" y="{HEIGHT - 18}">gain in points, 95 % interval</text>')
parts.append("</svg>")
print("\n".join(parts))
