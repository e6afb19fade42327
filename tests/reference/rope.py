"""Reference numbers for `crates/mcprl-engine/src/model/rope.rs`: the rotary frequencies of Transformers, per way of scaling and width.

Writes fixtures/rope.json: [{"scaling": as in `rope_scaling`, "theta", "dim", "frequencies": [dim / 2 of float32]}].
"""

import json
import pathlib

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

PATH = pathlib.Path(__file__).parent / "fixtures" / "rope.json"
ORIGINAL = 4096


def scalings(dim):
    yield 1e4, {"rope_type": "default"}
    yield 1e6, {"rope_type": "default"}
    yield 1e4, {"rope_type": "linear", "factor": 3.0}
    yield 5e5, {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    }
    yield 1e6, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    yield 1e4, {
        "rope_type": "longrope",
        "short_factor": [1 + i / 16 for i in range(dim // 2)],
        "long_factor": [1 + i for i in range(dim // 2)],
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    }


def main():
    cases = []
    for dim in (96, 128):
        for theta, scaling in scalings(dim):
            config = LlamaConfig(
                hidden_size=2 * dim,
                num_attention_heads=2,
                head_dim=dim,
                max_position_embeddings=4 * ORIGINAL,
                rope_parameters=scaling | {"rope_theta": theta},
            )
            frequencies = LlamaRotaryEmbedding(config).inv_freq.tolist()
            cases.append({"scaling": scaling, "theta": theta, "dim": dim, "frequencies": frequencies})
    PATH.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
