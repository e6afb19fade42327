"""Reference numbers for `src/grpo`: losses and gradients of TRL's own trainer.

Calls `GRPOTrainer._compute_loss` of the installed TRL, unmodified, with a stand-in for the model that hands out
log-probabilities as leaf tensors, and lets autograd give the gradient of the loss by each of them. Ratios are drawn
wide enough that both sides of the clip range bite. Advantages and importance weights are computed by TRL amid
generation: the statements that do so are taken from the source of `GRPOTrainer` and `RLOOTrainer` and executed as they
are.

Half of the groups of `half_flat` have equal rewards. TRL counts them; where they are excluded its loss is called on the
rollouts of the other groups, as DAPO's dynamic sampling leaves them.

In `importance` an earlier policy sampled: `sampled` are its log-probabilities, `old` those of the policy before its
first step. TRL has no loss on the tokens of tool results: in `tool_tokens` PyTorch's mean of their negative
log-probabilities, times a weight, is added to TRL's loss of the sampled ones.

`dual_clip` is TRL's `delta`: both bound the ratio of a rollout with a negative advantage, and agree where the bound is above
the clip range.

Writes fixtures/grpo_loss.json:

    {"trl": version,
     "advantages": [{"rewards": [[..one group..], ..], "mean": [..of all groups..], "mean_std": [..],
                     "leave_one_out": [..], "batch_std": [..]}],
     "cases": [{"kind", "clip_low", "clip_high", "kl", "token_budget",
                "rollouts": [{"advantage", "new": [..], "old": [..], "reference": [..],
                              "gradient": [..d loss / d new..], "clipped": [..bool..]}],
                "loss"}],
     "half_flat": [{.. as in "cases", and "zero_variance": "count" or "exclude";
                    of a rollout "group" and "reward" in place of "advantage" ..}],
     "importance": [{.. as in "cases", and "mode", "cap"; of a rollout also "sampled": [..], "weights": [..] ..}],
     "tool_tokens": [{.. as in "cases", and "tool_token_loss"; of a rollout also
                      "tool": [..log p of the tool tokens..], "tool_gradient": [..d loss / d tool..] ..}],
     "dual_clip": [{.. as in "cases", and "dual_clip" ..}]}

`clip_high` is the distance from 1, for CISPO too, where TRL takes the bound itself.
"""

import ast
import collections
import inspect
import json
import pathlib
import sys
import textwrap
import types

import torch
import trl
from trl import GRPOTrainer, RLOOTrainer

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

MODES = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def body(method):
    """The top-level statements of a method, those of nested blocks included."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def execute(method, statements, variables):
    """Executes statements of a method of TRL, in its module, with these variables."""
    module = ast.Module(body=statements, type_ignores=[])
    names = {**vars(sys.modules[method.__module__]), **variables}
    exec(compile(module, method.__module__, "exec"), names)
    return names


def trl_advantages(groups, scale_rewards):
    """TRL's statements between rewards and advantages, in GRPO."""
    method = GRPOTrainer._generate_and_score_completions
    branch = [
        node
        for node in body(method)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "self.multi_objective_aggregation == 'sum_then_normalize'"
    ]
    rewards = groups.reshape(-1, 1)
    variables = {
        "self": types.SimpleNamespace(scale_rewards=scale_rewards, reward_weights=torch.ones(1, dtype=torch.float64)),
        "rewards_per_func": rewards,
        "device": "cpu",
        "unscorable_mask": torch.isnan(rewards).all(dim=1),
        "num_generations": groups.shape[1],
    }
    return execute(method, branch[0].body, variables)["advantages"]


def rloo_advantages(groups):
    """TRL's statements between rewards and advantages, in RLOO."""
    method = RLOOTrainer._generate_and_score_completions
    texts = ["grouped_rewards = rewards.view", "scorable_counts = ", "grouped_sum = ", "if num_generations > 1:\n    baselines"]
    found = [next(node for node in body(method) if ast.unparse(node).startswith(text)) for text in texts]
    return execute(method, found, {"rewards": groups.reshape(-1), "num_generations": groups.shape[1]})["advantages"]


def trl_importance(mode, cap, old, sampled, mask):
    """TRL's statements for its weights, which it applies where vLLM sampled."""
    method = GRPOTrainer._generate_and_score_completions
    branch = next(
        node
        for node in body(method)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "self.use_vllm and self.vllm_importance_sampling_correction"
        and ast.unparse(node.body[0]).startswith("mask = ")
    )
    trainer = types.SimpleNamespace(
        vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=None, vllm_importance_sampling_clip_max=cap
    )
    variables = {
        "self": trainer,
        "completion_mask": mask,
        "tool_mask": None,
        "old_per_token_logps": old,
        "sampling_per_token_logps": sampled,
    }
    return execute(method, branch.body, variables)["vllm_importance_sampling_ratio"]


def trl_loss(kind, kl, advantages, new, old, reference, mask, weights=None, delta=None):
    loss_type, level, low, high = KINDS[kind]
    stand_in = types.SimpleNamespace(
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=low,
        epsilon_high=1 + high if loss_type == "cispo" else high,
        beta=kl,
        max_completion_length=TOKEN_BUDGET,
        args=types.SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
        model=types.SimpleNamespace(training=True),
        accelerator=types.SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=False
        ),
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=weights is not None,
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
        "importance_sampling_ratio": weights,
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
    advantages = torch.tensor([mean for rewards in GROUPS.values() for mean in batch([rewards])["mean"]], dtype=torch.float64)
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


def draws(rows, width, generator):
    """Draws numbers of few digits, which float32 holds."""
    return lambda scale: (64 * scale * torch.randn(rows, width, generator=generator)).round().double() / 64


def importance(kind, mode, generator):
    rows, width, kl, cap = len(LENGTHS), max(LENGTHS), 0.1, 1.125
    mask = (torch.arange(width) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    draw = draws(rows, width, generator)
    old = -draw(1.0).abs() - 0.5
    sampled, new, reference = old + draw(0.4), (old + draw(0.35)).clamp(max=-1 / 64), old + draw(0.2)
    weights = trl_importance(mode, cap, old, sampled, mask)
    assert (weights == cap).any() or (weights == 0).any(), f"{mode}: the cap does not bite"
    new.requires_grad_(True)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    loss = trl_loss(kind, kl, advantages, new, old, reference, mask, weights)
    loss.backward()
    _, _, low, high = KINDS[kind]
    weights = weights.expand_as(old)
    rollouts = [
        {
            "advantage": advantages[row].item(),
            "new": new[row, :length].tolist(),
            "old": old[row, :length].tolist(),
            "sampled": sampled[row, :length].tolist(),
            "reference": reference[row, :length].tolist(),
            "weights": [round(weight, 12) for weight in weights[row, :length].tolist()],
            "gradient": [round(slope, 12) for slope in new.grad[row, :length].tolist()],
        }
        for row, length in enumerate(LENGTHS)
    ]
    return {
        "kind": kind,
        "clip_low": low,
        "clip_high": high,
        "kl": kl,
        "token_budget": TOKEN_BUDGET,
        "mode": mode,
        "cap": cap,
        "rollouts": rollouts,
        "loss": loss.item(),
    }


def tool_tokens(kind, generator):
    """Sampled tokens and tokens of tool results alternate."""
    rows, width, weight = len(LENGTHS), 2 * max(LENGTHS), 0.1
    draw = draws(rows, width, generator)
    within = torch.arange(width) < 2 * torch.tensor(LENGTHS).unsqueeze(1)
    sampled = (torch.arange(width) % 2 == 0).expand(rows, width)
    logprobs = (-draw(1.0).abs() - 0.5).requires_grad_(True)
    new, mask = logprobs[:, 0::2], (within & sampled)[:, 0::2].long()
    old = (new.detach() + draw(0.3)[:, 0::2]).clamp(max=-1 / 64)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    chosen = logprobs[within & ~sampled].unsqueeze(-1)
    cross_entropy = torch.nn.functional.nll_loss(chosen, torch.zeros(len(chosen), dtype=torch.long))
    loss = trl_loss(kind, 0.0, advantages, new, old, old, mask) + weight * cross_entropy
    loss.backward()
    _, _, low, high = KINDS[kind]
    rollouts = [
        {
            "advantage": advantages[row].item(),
            "new": logprobs[row, 0 : 2 * length : 2].tolist(),
            "old": old[row, :length].tolist(),
            "reference": old[row, :length].tolist(),
            "tool": logprobs[row, 1 : 2 * length : 2].tolist(),
            "gradient": logprobs.grad[row, 0 : 2 * length : 2].tolist(),
            "tool_gradient": logprobs.grad[row, 1 : 2 * length : 2].tolist(),
        }
        for row, length in enumerate(LENGTHS)
    ]
    return {
        "kind": kind,
        "clip_low": low,
        "clip_high": high,
        "kl": 0.0,
        "token_budget": TOKEN_BUDGET,
        "tool_token_loss": weight,
        "rollouts": rollouts,
        "loss": loss.item(),
    }


def dual_clip(kind, kl, generator):
    rows, width, bound = len(LENGTHS), max(LENGTHS), 1.5
    mask = (torch.arange(width) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    draw = draws(rows, width, generator)
    old = -draw(1.0).abs() - 1.5
    new, reference = (old + draw(0.6)).clamp(max=-1 / 64), old + draw(0.2)
    new.requires_grad_(True)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    loss = trl_loss(kind, kl, advantages, new, old, reference, mask, delta=bound)
    loss.backward()
    beyond = ((new - old).exp() > bound) & mask.bool()
    assert beyond[advantages < 0].any() and beyond[advantages > 0].any(), f"{kind}: the bound does not bite"
    clipped = (clipped_tokens(kind, advantages, new.detach(), old, mask) | (beyond & (advantages < 0).unsqueeze(1))) & mask.bool()
    _, _, low, high = KINDS[kind]
    rollouts = [
        {
            "advantage": advantages[row].item(),
            "new": new[row, :length].tolist(),
            "old": old[row, :length].tolist(),
            "reference": reference[row, :length].tolist(),
            "gradient": [round(slope, 12) for slope in new.grad[row, :length].tolist()],
            "clipped": clipped[row, :length].tolist(),
        }
        for row, length in enumerate(LENGTHS)
    ]
    return {
        "kind": kind,
        "clip_low": low,
        "clip_high": high,
        "dual_clip": bound,
        "kl": kl,
        "token_budget": TOKEN_BUDGET,
        "rollouts": rollouts,
        "loss": loss.item(),
    }


def batch(groups):
    groups = torch.tensor(groups).double()
    return {
        "rewards": groups.tolist(),
        "mean": trl_advantages(groups, "none").tolist(),
        "mean_std": trl_advantages(groups, "group").tolist(),
        "leave_one_out": rloo_advantages(groups).tolist(),
        "batch_std": trl_advantages(groups, "batch").tolist(),
    }


def main():
    generator = torch.Generator().manual_seed(15)
    cases = [case(kind, kl, generator) for kind in KINDS for kl in (0.0, 0.1)]
    fixture = {
        "trl": trl.__version__,
        "advantages": [
            batch([[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]]),
            batch([[0.9, -0.1, 0.35, 1.02], [0.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [-0.2, 0.3, 0.3, 0.9]]),
        ],
        "cases": cases,
        "half_flat": [
            half_flat(kind, kl, zero_variance, generator)
            for kind in KINDS
            for kl in (0.0, 0.1)
            for zero_variance in ("count", "exclude")
        ],
        "importance": [importance(kind, mode, generator) for kind in ("dapo", "gspo", "cispo") for mode in MODES],
        "tool_tokens": [tool_tokens(kind, generator) for kind in ("dapo", "grpo")],
        "dual_clip": [dual_clip(kind, kl, generator) for kind in ("dapo", "grpo", "dr_grpo") for kl in (0.0, 0.1)],
    }
    path = HERE / "fixtures" / "grpo_loss.json"
    path.write_text(json.dumps(fixture) + "\n")
    for c in cases:
        clipped = [(r["advantage"], sum(r["clipped"]), len(r["new"])) for r in c["rollouts"]]
        print(c["kind"], c["kl"], f"loss {c['loss']:+.6f}", "(advantage, clipped, tokens):", clipped)


if __name__ == "__main__":
    main()
