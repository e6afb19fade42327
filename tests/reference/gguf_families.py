"""GGUF files of small random models, by llama.cpp's own converter:

    python gguf_families.py LLAMA_CPP [NAME]...

LLAMA_CPP is a folder with llama.cpp's sources: the source distribution of llama-cpp-python has them under vendor/llama.cpp.
Converts fixtures/families/NAME into fixtures/gguf/NAME.gguf, with a tokenizer of 64 tokens and the template of chat/qwen3. `qwen3_5`
gets a layer that predicts a further token (`mtp`), which no reader of the decoder alone may use.

With llama-cpp-python, its logits on the same model in float32 are compared with those of Transformers in
fixtures/families/NAME/reference.safetensors. Needs torch and transformers. NAME=FILE.gguf compares another file, such as an
exported one; weights in bf16 make llama.cpp round what they multiply.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
FAMILIES = HERE / "fixtures" / "families"
PRE = {"qwen3_5": "qwen35", "lfm2": "lfm2"}
CONTROL = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]


def tokens(count):
    """Control tokens, single characters, and one merge."""
    characters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [chr(code) for code in range(ord("0"), ord("Z") + 1)]
    return (CONTROL + ["Ġ", "Ċ", "he"] + characters)[:count]


def write_tokenizer(writer, name, count):
    names = tokens(count)
    assert len(names) == count
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE[name])
    writer.add_token_list(names)
    writer.add_token_types([3 if token in CONTROL else 1 for token in names])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template((HERE / "chat" / "qwen3" / "chat_template.jinja").read_text())


def with_prediction(folder):
    """Adds the layer that Qwen3.5 has for multi-token prediction."""
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    draw = lambda like: torch.randn(like.shape, generator=generator).to(like.dtype)
    hidden = tensors["model.norm.weight"]
    added = {f"mtp.{name}.weight": draw(hidden) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    added["mtp.fc.weight"] = draw(torch.cat([tensors["model.layers.3.self_attn.k_proj.weight"].T] * 2, 1)[:, :64])
    added |= {name.replace("model.layers.3", "mtp.layers.0"): draw(tensor) for name, tensor in tensors.items() if "layers.3." in name}
    save_file(tensors | added, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mtp_num_hidden_layers": 1}))


def convert(sources, name, file, kind="MOSTLY_BF16"):
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import conversion
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / name
        shutil.copytree(FAMILIES / name, folder)
        if name == "qwen3_5":
            with_prediction(folder)
        for other in folder.glob("reference.safetensors"):
            other.unlink()
        parameters = conversion.ModelBase.load_hparams(folder, False)
        converter = conversion.get_model_class(conversion.get_model_architecture(parameters, conversion.ModelType.TEXT))
        converter.set_vocab = lambda self: write_tokenizer(self.gguf_writer, name, parameters["vocab_size"])
        with torch.inference_mode():
            converter(folder, gguf.LlamaFileType[kind], file).write()


def compare(name, file):
    """The largest difference between logits of llama.cpp and Transformers, and how many top tokens are equal."""
    import llama_cpp
    import numpy

    # 0 is float32, of keys and values.
    model = llama_cpp.Llama(str(file), n_ctx=256, n_threads=1, type_k=0, type_v=0, logits_all=True, verbose=False)
    reference = load_file(FAMILIES / name / "reference.safetensors")
    largest, equal, count = 0.0, 0, 0
    for key, expected in reference.items():
        if not key.startswith("base.logits."):
            continue
        model.reset()
        model.eval(reference[f"tokens.{key.rsplit('.', 1)[1]}"].tolist())
        found = torch.tensor(numpy.array(model.scores[: len(expected)]))
        largest = max(largest, (found - expected).abs().max().item())
        equal += int((found.argmax(-1) == expected.argmax(-1)).sum())
        count += len(expected)
    print(f"{file.name}: {largest:.4f} is the largest difference of a logit, {equal} of {count} top tokens are equal")


def main():
    sources, *names = sys.argv[1:]
    sources = pathlib.Path(sources).resolve()
    for name in names or PRE:
        name, _, given = name.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(given or f"{folder}/{name}-f32.gguf")
            if not given:
                convert(sources, name, HERE / "fixtures" / "gguf" / f"{name}.gguf")
                convert(sources, name, file, "ALL_F32")
            try:
                compare(name, file)
            except ModuleNotFoundError as missing:
                print(f"not compared with llama.cpp: {missing}")


main()
