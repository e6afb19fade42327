"""Reference numbers for `crates/mcprl-engine/src/model/kernels/attention/`: attention over keys and values in bf16, and its gradients.

PyTorch in float64. The scaled queries, the keys, the values and the probabilities are rounded to bf16 (to nearest, ties to
even); a rounded number has the gradient of its value, as autograd gives a cast. Writes fixtures/attention_bf16.json:

    {"heads": {"query", "kv", "dim"}, "rows",
     "q", "dout": [rows · query · dim], "k", "v": [rows · kv · dim],
     "out", "dq": as q, "dk", "dv": as k}

Row t sees the rows 0 .. t. Inputs are multiples of 1/4096, so that they are the same in float32.
"""

import json
import pathlib

import torch

PATH = pathlib.Path(__file__).parent / "fixtures" / "attention_bf16.json"
ROWS, QUERY, KV, DIM = 37, 2, 1, 8


def rounded(x):
    return x + (x.to(torch.float32).to(torch.bfloat16).to(torch.float64) - x).detach()


def main():
    generator = torch.Generator().manual_seed(41)
    draw = lambda heads: (torch.randn(ROWS, heads, DIM, generator=generator) * 4096).round().double() / 4096
    q, k, v, dout = draw(QUERY), draw(KV), draw(KV), draw(QUERY)
    for x in (q, k, v):
        x.requires_grad_()
    queries = rounded(q * DIM**-0.5).transpose(0, 1)
    keys, values = (rounded(x).transpose(0, 1).repeat_interleave(QUERY // KV, 0) for x in (k, v))
    unseen = torch.ones(ROWS, ROWS).triu(1).bool()
    scores = (queries @ keys.transpose(1, 2)).masked_fill(unseen, -torch.inf)
    out = (rounded(scores.softmax(-1)) @ values).transpose(0, 1)
    out.backward(dout)
    found = {"q": q, "k": k, "v": v, "dout": dout, "out": out, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    fixture = {"heads": {"query": QUERY, "kv": KV, "dim": DIM}, "rows": ROWS}
    fixture |= {name: [float(f"{x:.9g}") for x in tensor.flatten().tolist()] for name, tensor in found.items()}
    PATH.write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
