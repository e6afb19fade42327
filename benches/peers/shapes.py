"""Shapes of the decoders that are measured with random weights, as Transformers names their sizes."""

QWEN3 = dict(head_dim=128, num_key_value_heads=8, vocab_size=151936)
SHAPES = {
    "demo": dict(hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, vocab_size=1024),
    "qwen3-0.6b": dict(QWEN3, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
    # Text alone, with the names and defaults of Transformers' `Qwen3_5TextConfig`.
    "qwen3.5-0.8b": dict(hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
                         num_key_value_heads=2, head_dim=256, vocab_size=248320, linear_num_value_heads=16),
    "qwen3-4b": dict(QWEN3, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
    "qwen3-8b": dict(QWEN3, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32),
}
# Those whose output projection is not the embedding.
UNTIED = {"qwen3-8b"}
