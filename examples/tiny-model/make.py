"""Makes a tiny language model that uses a server's tools, badly: a base for the demo pipelines, which GRPO then improves.

    make.py RUN_FILE RUN OUT [--conversations N] [--mcprl PROGRAM]

RUN_FILE has the server and the system prompt. RUN is the folder of a run with its stages `tools` and `tasks`. OUT becomes a
Hugging Face model folder. README.md says more.
"""

import argparse
import collections
import json
import math
import random
import re
import subprocess
import tomllib
from pathlib import Path

import pyarrow.parquet as parquet
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 1
COPY_DRILLS = 10_000
TOKENS_PER_STEP = 2048

# How often the sloppy worker makes each mistake.
GUESS = 0.60        # begins with a call that fails, because a name in it is cut short
GIVE_UP = 0.60      # ends after such a failure
MIX_UP = 0.15       # solves another task about the same thing
MISREAD = 0.20      # asks for another column of the same table, where the solution is one query
FORGET = 0.15       # writes the answer as text instead of calling `complete_task`

# --- The server ----------------------------------------------------------------------------------------------------


class Server:
    """An MCP server over stdio."""

    def __init__(self, settings, mcprl):
        command = [word.replace("{mcprl}", mcprl) for word in settings["command"]]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reset_tool = settings.get("reset_tool")
        self.requests = 0
        client = {"name": "tiny-model", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        self.requests += 1
        self.send({"id": self.requests, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.requests:
                return message["result"]
        raise SystemExit("the server has ended")

    def call(self, call):
        """The text of the result, and whether the call failed."""
        result = self.ask("tools/call", {"name": call["name"], "arguments": call["arguments"]})
        return "\n".join(part["text"] for part in result["content"]), result.get("isError", False)

    def play(self, calls):
        """The calls with their results, on the server as it is at the start."""
        if self.reset_tool:
            self.call({"name": self.reset_tool, "arguments": {}})
        return [(call, *self.call(call)) for call in calls]


# --- The sloppy worker ---------------------------------------------------------------------------------------------


SELECT = re.compile(r"SELECT (.+?) FROM (\w+)(.)")


class Worker:
    """Solves tasks by their reference solutions, with mistakes on purpose."""

    def __init__(self, tasks, server, draw):
        self.server, self.draw, self.played = server, draw, {}
        self.by_entity = {}
        self.columns = {}
        for task in tasks:
            self.by_entity.setdefault(task["entity"], []).append(task)
            for column, table, _ in SELECT.findall(task["reference"]):
                self.columns.setdefault(table, set()).add(column)

    def results(self, calls):
        key = json.dumps(calls)
        if key not in self.played:
            self.played[key] = self.server.play(calls)
        return self.played[key]

    def mixed_up(self, task):
        """Another task about the same thing, or about a part of it."""
        about = json.loads(task["entity"]).items()
        same = [all for entity, all in self.by_entity.items() if json.loads(entity).items() <= about]
        families = {}
        for other in (other for all in same for other in all):
            families.setdefault(other["family"], []).append(other)
        families.pop(task["family"], None)
        return self.draw.choice(self.draw.choice(list(families.values()) or [[task]]))

    def misread(self, task):
        """The query of the solution with another column, and its result as the answer. None if it has no such query."""
        query = SELECT.search(task["reference"])
        if not query:
            return None
        column = self.draw.choice(sorted(self.columns[query[2]]))
        calls = json.loads(task["reference"].replace(query[0], f"SELECT {column} FROM {query[2]}{query[3]}"))
        _, result, failed = self.results(calls)[-1]
        return calls, "unknown" if failed else result.splitlines()[-1]

    def conversation(self, task):
        messages = [{"role": "user", "content": task["task"]}]

        def say(call, result):
            messages.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]})
            messages.append({"role": "tool", "content": result})

        def happens(chance):
            return self.draw.random() < chance

        answer = None
        if happens(GUESS):
            guess = cut_short(json.loads(task["reference"])[0])
            for call, result, failed in self.results([guess]) if guess else []:
                if failed:
                    say(call, result)
                    answer = "unknown" if happens(GIVE_UP) else None
        if answer is None:
            solved = self.mixed_up(task) if happens(MIX_UP) else task
            calls, answer = json.loads(solved["reference"]), solved["answer"]
            if happens(MISREAD):
                calls, answer = self.misread(solved) or (calls, answer)
            for call, result, _ in self.results(calls):
                say(call, result)
        if happens(FORGET):
            messages.append({"role": "assistant", "content": answer})
        else:
            say({"name": "complete_task", "arguments": {"answer": answer}}, "")
            messages.pop()
        return messages


def cut_short(call):
    """The call with a name that is not whole: `pay` for `annual_pay`, `Nova` for `Nova Clinic`. None if it has no such name."""
    written = json.dumps(call["arguments"])
    for name, short in [(r"\b[a-z]+_([a-z]+)\b(?!\")", r"\1"), (r"\b([A-Z][a-z]+) [A-Z][a-z]+", r"\1")]:
        cut = re.sub(name, short, written, count=1)
        if cut != written:
            return {"name": call["name"], "arguments": json.loads(cut)}
    return None


# --- From conversations to tokens ----------------------------------------------------------------------------------

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SAID = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# Names and digits are copied, so they have the same tokens wherever they stand.
PIECES = r"\d|[A-Z][a-z]+|[A-Z]+|[a-z]+(?:_[a-z]+)+| ?[a-z]+(?![a-z_])|[a-z]+| ?[^\sA-Za-z\d]+|\s"
# A clause of SQL: a keyword and what follows, up to the next keyword or value.
CLAUSE = re.compile(r" ?[A-Z]{2,}[^\"'A-Z\d\n]*")


def phrases(texts, functions):
    """What stands around names and values in calls and results: one token each, so that episodes are short."""
    found = ["user\n", "assistant\n", "user\n<tool_response>\n", "\n</tool_response>", '"}}\n</tool_call>', "'\"}}\n</tool_call>"]
    for function in functions:
        names = list(function["parameters"].get("properties", {}))
        found.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {{"' + (f'{names[0]}": "' if names else ""))
        found += [f'", "{name}": "' for name in names[1:]]
    said = (part for text in texts for part in SAID.findall(text))
    clauses = collections.Counter(clause for part in said for clause in CLAUSE.findall(part))
    return found + [clause for clause, _ in clauses.most_common(48)]


def make_tokenizer(texts, functions, template, vocabulary):
    added = MARKS + sorted(set(phrases(texts, functions)))
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - len(added), special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    cuts = re.compile("|".join(re.escape(token) for token in sorted(SPECIAL + added, key=len, reverse=True)))
    # Rare names deserve tokens too, because they are copied: a line counts as often as the root of its count.
    lines = collections.Counter(line for text in texts for line in text.splitlines())
    weighted = (line for line, count in sorted(lines.items()) for _ in range(math.isqrt(count)))
    tokenizer.train_from_iterator((part for line in weighted for part in cuts.split(line) if part), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    end_of_text, _, end_of_turn = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end_of_turn, pad_token=end_of_text, chat_template=template)


def example(text, encode):
    """Tokens, and for each the label: itself if the assistant says it. As in a rollout, each turn has tokens of its own."""
    tokens, labels = [], []
    for at, part in enumerate(SAID.split(text)):
        part = encode(part)
        tokens += part
        labels += part if at % 2 else [-100] * len(part)
    return tokens, labels


def copy_drills(count, tokens, draw):
    """Random tokens with a passage that occurs twice: they teach copying, which conversations teach slowly."""
    for _ in range(count):
        few = draw.sample(tokens, draw.choice([12, len(tokens)]))
        some = lambda least, most: draw.choices(few, k=draw.randint(least, most))
        passage = some(6, 35)
        before = some(0, 19) + passage + some(0, 19) + passage[:1]
        yield before + passage[1:], [-100] * len(before) + passage[1:]


# --- Training ------------------------------------------------------------------------------------------------------


def steps_of(examples, draw):
    """Examples of similar length together, in batches of about as many tokens, in a random order."""
    draw.shuffle(examples)
    steps = []
    for start in range(0, len(examples), 1024):
        batch = []
        for one in sorted(examples[start : start + 1024], key=lambda one: len(one[0])):
            if batch and len(one[0]) * (len(batch) + 1) > TOKENS_PER_STEP:
                steps.append(batch)
                batch = []
            batch.append(one)
        steps.append(batch)
    draw.shuffle(steps)
    return steps


class Muon(torch.optim.Optimizer):
    """Momentum, with the update of each matrix made orthogonal (as `torch.optim.Muon`, which is slow on CPUs without bf16)."""

    def __init__(self, matrices, lr, momentum=0.95):
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for matrix in group["params"]:
                kept = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                kept.mul_(group["momentum"]).add_(matrix.grad)
                update = orthogonal(matrix.grad + group["momentum"] * kept)
                matrix.add_(update, alpha=-group["lr"] * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonal(matrix):
    """The nearest matrix with orthogonal rows or columns, roughly, by Newton's and Schulz' iteration."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = matrix @ matrix.T
        matrix = 3.4445 * matrix + (2.0315 * square @ square - 4.775 * square) @ matrix
    return matrix


def train(model, steps):
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        Muon(matrices, lr=0.02),
        torch.optim.AdamW(others, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    rate = lambda step: min(1.0, 0.1 + 1.8 * (1 - step / len(steps)))    # falls over the second half
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    shown = 0.0
    for at, batch in enumerate(steps, 1):
        longest = max(len(tokens) for tokens, _ in batch)
        pad = lambda rows, filler: torch.tensor([row + [filler] * (longest - len(row)) for row in rows])
        tokens, labels = pad([tokens for tokens, _ in batch], 0), pad([labels for _, labels in batch], -100)
        loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        shown += loss.item()
        if at % 50 == 0:
            print(f"step {at} of {len(steps)}: loss {shown / 50:.3f}", flush=True)
            shown = 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--mcprl", default="mcprl")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    draw = random.Random(SEED)

    run_file = tomllib.loads(args.run_file.read_text())
    system = (args.run_file.parent / run_file["agent"]["system"]).read_text().strip()
    template = Path(__file__).with_name("chat_template.jinja").read_text()
    functions = [json.loads(text) for text in parquet.read_table(args.run / "tools/tools.parquet")["function"].to_pylist()]
    tasks = parquet.read_table(args.run / "tasks/train.parquet").to_pylist()

    worker = Worker(tasks, Server(run_file["server"], args.mcprl), draw)
    drawn = (draw.sample(tasks, len(tasks)) * math.ceil(args.conversations / len(tasks)))[: args.conversations]
    conversations = [[{"role": "system", "content": system}] + worker.conversation(task) for task in drawn]

    scratch = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=template)
    texts = [scratch.apply_chat_template(one, tools=functions, tokenize=False) for one in conversations]
    tokenizer = make_tokenizer(texts, functions, template, vocabulary=1024)
    examples = [example(text, lambda text: tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    seen = sorted({token for tokens, _ in examples for token in tokens})
    print(len(seen), sum(len(t) for t, _ in examples) / len(examples), sum(l != -100 for _, ls in examples for l in ls) / len(examples))

    config = Qwen3Config(
        vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    drills = list(copy_drills(COPY_DRILLS, seen, draw))
    train(model, steps_of(drills, draw) + steps_of(examples, draw))
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
