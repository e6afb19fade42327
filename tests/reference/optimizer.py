"""Reference numbers for `crates/mcprl-engine/src/optimizer.rs` and `src/grpo/schedule.rs`: PyTorch's AdamW, Transformers' schedules.

Writes fixtures/optimizer.json:

    {"adamw": {"beta1", "beta2", "weight_decay", "start": [..],
               "steps": [{"learning_rate", "gradient": [..], "parameter": [..after the step..]}]},
     "schedules": [{"shape", "warmup", "total", "peak", "rates": [..of step 0, 1, ..]}]}

Transformers' schedules give step 0 a rate of zero; ours do not take that step.
"""

import json
import pathlib

import torch
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

PATH = pathlib.Path(__file__).parent / "fixtures" / "optimizer.json"
WARMUP, TOTAL, PEAK = 4, 21, 3e-3


def adamw():
    generator = torch.Generator().manual_seed(5)
    beta1, beta2, weight_decay = 0.9, 0.95, 0.1
    parameter = torch.nn.Parameter(torch.randn(6, generator=generator))
    start, steps = parameter.tolist(), []
    optimizer = torch.optim.AdamW([parameter], lr=1.0, betas=(beta1, beta2), weight_decay=weight_decay)
    for step in range(8):
        learning_rate = 0.05 / (1 + step)
        optimizer.param_groups[0]["lr"] = learning_rate
        parameter.grad = torch.randn(6, generator=generator) * 10.0 ** -torch.arange(6)
        optimizer.step()
        steps.append(
            {"learning_rate": learning_rate, "gradient": parameter.grad.tolist(), "parameter": parameter.tolist()}
        )
    return {"beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "start": start, "steps": steps}


def rates(shape):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    schedule = {
        "constant": lambda: get_constant_schedule_with_warmup(optimizer, WARMUP),
        "linear": lambda: get_linear_schedule_with_warmup(optimizer, WARMUP, TOTAL),
        "cosine": lambda: get_cosine_schedule_with_warmup(optimizer, WARMUP, TOTAL),
    }[shape]()
    found = []
    for _ in range(TOTAL + 1):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return {"shape": shape, "warmup": WARMUP, "total": TOTAL, "peak": PEAK, "rates": found}


def main():
    fixture = {"adamw": adamw(), "schedules": [rates(shape) for shape in ("constant", "linear", "cosine")]}
    PATH.write_text(json.dumps(fixture) + "\n")
    print({s["shape"]: [f"{rate:.2e}" for rate in s["rates"][:6]] for s in fixture["schedules"]})


if __name__ == "__main__":
    main()
