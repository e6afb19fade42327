"""Reference numbers for `src/grpo`: losses and gradients of TRL's own trainer.

Calls `GRPOTrainer._compute_loss` of the installed TRL, unmodified, with a stand-in for the model that hands out
log-probabilities as leaf tensors, and lets autograd give the gradient of the loss by each of them. Ratios are drawn
wide enough that both sides of the clip range bite. Advantages come from TRL's rule for `scale_rewards`, restated here
because TRL computes it amid generation.

Half of the groups of `half_flat` have equal rewards. TRL counts them; where they are excluded its loss is called on the
rollouts of the other groups, as DAPO's dynamic sampling leaves them.

Writes fixtures/grpo_loss.json:

    {"trl": version,
     "advantages": [{"rewards": [..one group..], "mean": [..], "mean_std": [..]}],
     "cases": [{"kind", "clip_low", "clip_high", "kl", "token_budget",
                "rollouts": [{"advantage", "new": [..], "old": [..], "reference": [..],
                              "gradient": [..d loss / d new..], "clipped": [..bool..]}],
                "loss"}],
     "half_flat": [{.. as in "cases", and "zero_variance": "count" or "exclude";
                    of a rollout "group" and "reward" in place of "advantage" ..}]}

`clip_high` is the distance from 1, for CISPO too, where TRL takes the bound itself.
"""

import collections
import json
import pathlib
import types

import torch
import trl
from trl import GRPOTrainer

HERE = pathlib.Path(__file__).parent
LENGTHS = [4, 1, 6, 3, 5, 2]
ADVANTAGES = [1.25, -0.5, -1.0, 0.25, -0.75, 0.5]
TOKEN_BUDGET = 8
# Rewards of the rollouts of each group.
GROUPS = {"a": [1.0, 0.0, 0.25], "b": [1.0, 1.0], "c": [0.0, 0.0], "d": [0.0, 0.5, 1.0]}

# mcprl's name: (TRL loss_type, importance_sampling_level, clip_low, clip_high)
KINDS = {
    "dapo": ("dapo", "token", 0.2, 0.28),
    "grpo": ("grpo", "token", 0.2, 0.28),
    "dr_grpo": ("dr_grpo", "token", 0.2, 0.28),
    "gspo": ("grpo", "sequence", 0.05, 0.08),
    "cispo": ("cispo", "token", 1.0, 0.5),
}


def trl_loss(kind, kl, advantages, new, old, reference, mask):
    loss_type, level, low, high = KINDS[kind]
    stand_in = types.SimpleNamespace(
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=low,
        epsilon_high=1 + high if loss_type == "cispo" else high,
        beta=kl,
        max_completion_length=TOKEN_BUDGET,
        args=types.SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        model=types.SimpleNamespace(training=True),
        accelerator=types.SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=False
        ),
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": collections.defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    return GRPOTrainer._compute_loss(stand_in, None, inputs)


def clipped_tokens(kind, advantages, new, old, mask):
    """TRL reports means only; the predicate is the one behind them, without CISPO's condition on the sign."""
    _, level, low, high = KINDS[kind]
    ratio = (new - old) * mask
    if level == "sequence":
        ratio = (ratio.sum(-1) / mask.sum(-1)).unsqueeze(-1).expand_as(new)
    ratio = ratio.exp()
    advantages = advantages.unsqueeze(1)
    if kind == "cispo":
        return ratio > 1 + high
    return ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))


def case(kind, kl, generator):
    rows, width = len(LENGTHS), max(LENGTHS)
    mask = (torch.arange(width) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    old = -3 * torch.rand(rows, width, generator=generator) - 0.05
    drift = 0.15 * torch.randn(rows, 1, generator=generator) + 0.35 * torch.randn(rows, width, generator=generator)
    new = (old + drift).clamp(max=-1e-3)
    reference = old + 0.2 * torch.randn(rows, width, generator=generator)
    # The values are float32, as a policy gives them; the arithmetic on them is double.
    new, old, reference = new.double(), old.double(), reference.double()
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    new.requires_grad_(True)
    loss = trl_loss(kind, kl, advantages, new, old, reference, mask)
    loss.backward()
    clipped = clipped_tokens(kind, advantages, new.detach(), old, mask) & mask.bool()
    if kind != "cispo":
        for side in (advantages > 0, advantages < 0):
            assert clipped[side].any(), f"{kind}: the seed leaves one side of the clip range untested"
    _, _, low, high = KINDS[kind]
    rollouts = [
        {
            "advantage": advantages[row].item(),
            "new": new[row, :length].tolist(),
            "old": old[row, :length].tolist(),
            "reference": reference[row, :length].tolist(),
            "gradient": new.grad[row, :length].tolist(),
            "clipped": clipped[row, :length].tolist(),
        }
        for row, length in enumerate(LENGTHS)
    ]
    return {
        "kind": kind,
        "clip_low": low,
        "clip_high": high,
        "kl": kl,
        "token_budget": TOKEN_BUDGET,
        "rollouts": rollouts,
        "loss": loss.item(),
    }


def half_flat(kind, kl, zero_variance, generator):
    members = [(name, reward) for name, rewards in GROUPS.items() for reward in rewards]
    advantages = torch.tensor([mean for rewards in GROUPS.values() for mean in group(rewards)["mean"]], dtype=torch.float64)
    kept = torch.tensor([zero_variance == "count" or len(set(GROUPS[name])) > 1 for name, _ in members])
    lengths = torch.randint(1, 5, (len(members),), generator=generator)
    rows, width = len(members), int(lengths.max())
    mask = (torch.arange(width) < lengths.unsqueeze(1)).long()
    # Numbers of few digits, which float32 holds.
    draw = lambda scale: (64 * scale * torch.randn(rows, width, generator=generator)).round() / 64
    old = -draw(1.0).abs() - 0.5
    new, reference = (old + draw(0.35)).clamp(max=-1 / 64), old + draw(0.2)
    new, old, reference = new.double(), old.double(), reference.double()
    new.requires_grad_(True)
    loss = trl_loss(kind, kl, *(tensor[kept] for tensor in (advantages, new, old, reference, mask)))
    loss.backward()
    _, _, low, high = KINDS[kind]
    rollouts = [
        {
            "group": name,
            "reward": reward,
            "new": new[row, :length].tolist(),
            "old": old[row, :length].tolist(),
            "reference": reference[row, :length].tolist(),
            "gradient": [round(slope, 12) for slope in new.grad[row, :length].tolist()],
        }
        for row, ((name, reward), length) in enumerate(zip(members, lengths.tolist()))
    ]
    return {
        "kind": kind,
        "clip_low": low,
        "clip_high": high,
        "kl": kl,
        "token_budget": TOKEN_BUDGET,
        "zero_variance": zero_variance,
        "rollouts": rollouts,
        "loss": loss.item(),
    }


def group(rewards):
    rewards = torch.tensor(rewards).double()
    centred = rewards - rewards.mean()
    return {
        "rewards": rewards.tolist(),
        "mean": centred.tolist(),
        "mean_std": (centred / (rewards.std() + 1e-4)).tolist(),
    }


def main():
    generator = torch.Generator().manual_seed(15)
    cases = [case(kind, kl, generator) for kind in KINDS for kl in (0.0, 0.1)]
    fixture = {
        "trl": trl.__version__,
        "advantages": [group(r) for r in ([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0.9, -0.1, 0.35, 1.02])],
        "cases": cases,
        "half_flat": [
            half_flat(kind, kl, zero_variance, generator)
            for kind in KINDS
            for kl in (0.0, 0.1)
            for zero_variance in ("count", "exclude")
        ],
    }
    path = HERE / "fixtures" / "grpo_loss.json"
    path.write_text(json.dumps(fixture) + "\n")
    for c in cases:
        clipped = [(r["advantage"], sum(r["clipped"]), len(r["new"])) for r in c["rollouts"]]
        print(c["kind"], c["kl"], f"loss {c['loss']:+.6f}", "(advantage, clipped, tokens):", clipped)


if __name__ == "__main__":
    main()
