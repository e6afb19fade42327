"""Compares the tokenizer that mcprl makes of a GGUF file with llama.cpp's, on 10,000 mixed texts:

    python gguf_tokens.py FILE.gguf FOLDER [--write NAME] [--llama PYTHON]

FOLDER is the converted model. Prints how many texts have other ids, by cause, and the first of each. `--write` puts 60 of the
texts with llama.cpp's ids into fixtures/gguf/NAME.tokens.json, for `src/stage/model/gguf/tests/real.rs`. Needs tokenizers,
and llama-cpp-python or a Python with xllamacpp (`--llama`, for `llama_server.py`).
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
import tempfile
import unicodedata

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
COUNT = 10_000
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE7F), (0x300, 0x36F), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2150, 0x218F), (0x3040, 0x30FF), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x1F300, 0x1F64F), (0x1D400, 0x1D7FF),
]
WORDS = (
    "the of and to in is was for that Berlin naïve façade don't I'VE we'll it's 2026 3.14159 1,000,000 x86_64 snake_case "
    "camelCase HTTPServer ünïcödé 你好 世界 こんにちは 안녕하세요 Привет мир مرحبا שלום สวัสดี 🙂 👩‍💻 🇩🇪 → ≥ ½ ² ﬁ Å e\u0301 "
    "select * from `orders` where id = 42; def f(x): return x**2 {\"name\": \"look\", \"arguments\": {\"a\": [1, null]}} "
    "</think> <tool_call> </tool_call> <tool_response> https://example.org/a?b=c#d C:\\dir\\file.txt $100 50% a@b.de"
).split(" ")
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\t", "   ", "\r\n", " \n ", "\u00a0", "\u3000", ""]


def texts():
    draw = random.Random(7)
    lines = [line for path in sorted(HERE.glob("*.py")) for line in path.read_text().splitlines() if line]
    prose = [line for path in sorted(HERE.parent.parent.glob("docs/*.md")) for line in path.read_text().splitlines() if line]
    made = []
    while len(made) < COUNT:
        kind = len(made) % 5
        if kind == 0:
            made.append("".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(draw.randint(1, 40))))
        elif kind == 1:
            start = draw.randrange(len(lines))
            made.append("\n".join(lines[start : start + draw.randint(1, 8)]))
        elif kind == 2:
            start = draw.randrange(len(prose))
            made.append("\n".join(prose[start : start + draw.randint(1, 4)]))
        elif kind == 3:
            low, high = draw.choice(RANGES)
            made.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 60))))
        else:
            mixed = (draw.choice(RANGES) for _ in range(draw.randint(1, 60)))
            made.append("".join(chr(draw.randint(low, high)) if draw.random() < 0.8 else draw.choice(SPACES) for low, high in mixed))
    return made


def cause(text, demoted):
    if any(token in text for token in demoted):
        return "a token that became text"
    if "</s>" in text:
        return "`</s>`, which llama.cpp takes for a control token in every vocabulary"
    if unicodedata.normalize("NFC", text) != text:
        return "normalization (NFC), which llama.cpp leaves out"
    return "other"


def of_llama(options, made):
    if options.llama:
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("in.json", "out.json")]
            paths[0].write_text(json.dumps({"texts": made}))
            command = [options.llama, HERE / "llama_server.py", options.file, *paths]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return json.loads(paths[1].read_text())["tokens"]
    import llama_cpp

    llama = llama_cpp.Llama(options.file, vocab_only=True, verbose=False)
    return [llama.tokenize(text.encode(), add_bos=False, special=True) for text in made]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--write")
    parser.add_argument("--llama")
    options = parser.parse_args()
    ours = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    made = texts()
    wanted = of_llama(options, made)
    record = options.folder / "mcprl.json"
    demoted = json.loads(record.read_text())["demoted_tokens"] if record.is_file() else []
    differing, fixture = collections.defaultdict(list), []
    for index, (text, expected) in enumerate(zip(made, wanted)):
        found = ours.encode(text, add_special_tokens=False).ids
        if found != expected:
            differing[cause(text, demoted)].append(text)
        if index % 166 < 5 and len(fixture) < 60 and not demoted_in(text, demoted):
            fixture.append({"text": text, "ids": expected, "same": found == expected})
    total = sum(map(len, differing.values()))
    print(f"{COUNT} texts, {total} with other ids")
    for why, found in differing.items():
        print(f"  {len(found)}: {why}; first {min(found, key=len)!r}")
    if options.write:
        path = HERE / "fixtures" / "gguf" / f"{options.write}.tokens.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(fixture, ensure_ascii=True, indent=0, separators=(",", ":")) + "\n")


def demoted_in(text, demoted):
    return any(token in text for token in demoted)


main()
