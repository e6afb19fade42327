"""Reference numbers of a real model for `src/stage/model/gguf/tests/real.rs`:

    python gguf_parity.py NAME FILE.gguf [LLAMA_PYTHON]

Transformers reads the GGUF file itself (`gguf_file`), so its dequantization and its order of rows are not ours. The weights
are rounded to bf16, as mcprl holds them, and the arithmetic is float32. Writes fixtures/gguf/NAME.json:

    logits      of the texts, per position, or at `rows`: the largest logits with their ids, the logarithm of the sum of
                exponentials, and llama.cpp's top token on the quantized weights
    sft         the mean negative log-probability of the marked tokens with a LoRA adapter (PEFT), and of each of the
                adapter's gradients its norm and sum
    grpo        the same for one on-policy step: the mean over all tokens of -advantage * p / p.detach()

The adapter's values are a formula (`value`), in both programs. Needs torch, transformers, peft, gguf, and llama-cpp-python or a Python
with xllamacpp (LLAMA_PYTHON, for `llama_server.py`). A model with windows has a third text, longer than them.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhich city is the capital of Norway, and how "
    "many people live there?<|im_end|>\n<|im_start|>assistant\nThe capital of Norway is Oslo. About 717,000 people live",
    "def fibonacci(n):\n    \"\"\"The first n numbers.\"\"\"\n    a, b = 0, 1\n    numbers = []\n    for _ in range(n):\n        "
    "numbers.append(a)\n        a, b = b, a + b\n    return",
]
# More than 512 tokens, of which these positions are compared.
LONG = "".join(f"{number} times {number + 3} is {number * (number + 3)}. " for number in range(11, 61))
EVERY = 24
TOP = 5
RANK = 4
TARGETS = ["q_proj", "v_proj", "down_proj"]
ADVANTAGES = [1.25, -0.75]


def value(name, count):
    """Numbers between -1/64 and 1/64 that both programs compute."""
    seed = 7
    for byte in name.encode():
        seed = (seed * 31 + byte) % 2**64
    index = numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(seed)
    mixed = index * numpy.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> numpy.uint64(29)
    mixed *= numpy.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> numpy.uint64(40)).astype(numpy.float32) / 2**24 - 0.5) / 32


def marked(ids):
    """The tokens that have a loss: the second half."""
    return [at >= len(ids) // 2 for at in range(len(ids))]


def logprobs(model, ids):
    tokens = torch.tensor(ids)
    logits = model(tokens[None]).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


def step(model, loss):
    model.zero_grad()
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            short = name.replace("base_model.model.", "").replace(".default", "")
            gradient = parameter.grad.double()
            gradients[short] = [gradient.norm().item(), gradient.sum().item()]
    return {"loss": loss.item(), "gradients": gradients}


def by_server(python, file, **given):
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("in.json", "out.json")]
        paths[0].write_text(json.dumps(given))
        command = [python, HERE / "llama_server.py", file, *paths]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(paths[1].read_text())


def of_llama(file, texts, begin):
    """Tokens of the texts behind `begin`, the rows to compare, and llama.cpp's top token at these."""
    rows_of = lambda ids: list(range(EVERY - 1, len(ids), EVERY)) if len(ids) > 512 else list(range(len(ids)))
    if len(sys.argv) > 3:
        found = by_server(sys.argv[3], file, texts=texts)["tokens"]
        sequences = [begin + ids for ids in found]
        rows = [rows_of(ids) for ids in sequences]
        return sequences, rows, by_server(sys.argv[3], file, ids=sequences, rows=rows)["top"]
    import llama_cpp

    llama = llama_cpp.Llama(str(file), n_ctx=2048, logits_all=True, verbose=False)
    sequences = [begin + llama.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
    rows = [rows_of(ids) for ids in sequences]
    tops = []
    for ids, wanted in zip(sequences, rows):
        llama.reset()
        llama.eval(ids)
        tops.append(numpy.array(llama.scores[: len(ids)]).argmax(-1)[wanted].tolist())
    return sequences, rows, tops


def main():
    name, file = sys.argv[1], pathlib.Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager")
    print(type(model).__name__, model.config.tie_word_embeddings)
    is_gemma = model.config.model_type.startswith("gemma")
    texts, begin = (TEXTS + [LONG], [model.config.bos_token_id]) if is_gemma else (TEXTS, [])
    sequences, rows, tops = of_llama(file, texts, begin)
    # Two tables in the file, which Transformers may tie.
    import gguf

    reader = gguf.GGUFReader(str(file))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    if "output.weight" in stored:
        table = lambda key: torch.tensor(gguf.dequantize(stored[key].data, stored[key].tensor_type))
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(table("output.weight"))
        model.model.embed_tokens.weight = torch.nn.Parameter(table("token_embd.weight"))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
        parameter.requires_grad = False
    model.eval()
    logits = []
    agreeing = total = 0
    with torch.no_grad():
        for ids, wanted, top in zip(sequences, rows, tops):
            found = model(torch.tensor([ids])).logits[0, wanted]
            values, indices = found.topk(TOP, -1)
            agreeing += int((indices[:, 0] == torch.tensor(top)).sum())
            total += len(wanted)
            logits.append({
                "ids": ids,
                **({"rows": wanted} if len(wanted) < len(ids) else {}),
                "sum": [round(value, 5) for value in found.logsumexp(-1).tolist()],
                "top": [[[i, round(v, 5)] for i, v in zip(*row)] for row in zip(indices.tolist(), values.tolist())],
                "llama_cpp": top,
            })
    print(f"llama.cpp's top token on the quantized weights: {agreeing} of {total} are Transformers'")
    sequences = sequences[: len(TEXTS)]
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS, lora_dropout=0.0))
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            short = key.replace("base_model.model.", "").replace(".default", "")
            parameter.data = torch.tensor(value(short, parameter.numel())).reshape(parameter.shape)
    masks = [torch.tensor(marked(ids)[1:]) for ids in sequences]
    count = sum(int(mask.sum()) for mask in masks)
    loss = -sum(logprobs(model, ids)[mask].sum() for ids, mask in zip(sequences, masks)) / count
    sft = step(model, loss)
    loss = 0.0
    for ids, mask, advantage in zip(sequences, masks, ADVANTAGES):
        found = logprobs(model, ids)[mask]
        loss = loss - (advantage * (found - found.detach()).exp()).sum() / count
    grpo = step(model, loss)
    path = HERE / "fixtures" / "gguf" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    layers = {layer for layer in (0, model.config.num_hidden_layers // 2, model.config.num_hidden_layers - 1)}
    for part in (sft, grpo):
        part["gradients"] = {key: value for key, value in part["gradients"].items() if int(key.split(".")[2]) in layers}
    path.write_text(json.dumps({"logits": logits, "sft": sft, "grpo": grpo}, separators=(",", ":")) + "\n")
    print("sft", sft["loss"], "grpo", grpo["loss"])


main()
