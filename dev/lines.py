#!/usr/bin/env python3
"""Product lines of Rust: without tests, comments and blank lines, by crate and module.

    dev/lines.py                # of the working tree
    dev/lines.py REVISION       # of a commit, with the difference to the working tree
    dev/lines.py --modules      # modules of each crate, too

Counted are `src/` and `crates/*/src/`. A test is a file `tests.rs`, `*_tests.rs`, `testing.rs`, one below a folder `tests/` or
`parity/`, and any item or module behind `#[cfg(test)]`.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_FILE = re.compile(r"(^|/)(tests?|parity|testing)(/|\.rs$)|_tests\.rs$")
OPEN, CLOSE = "([{", ")]}"


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def sources(revision):
    """Path and text of each Rust file that counts."""
    listing = ["ls-tree", "-r", "--name-only", revision] if revision else ["ls-files"]
    for path in git(*listing, "src", "crates").decode().splitlines():
        if path.endswith(".rs") and "/src/" in "/" + path and not TEST_FILE.search(path):
            if revision:
                yield path, git("show", f"{revision}:{path}").decode()
            elif (ROOT / path).is_file():
                yield path, (ROOT / path).read_text()


def bare(text):
    """The text without comments; strings and characters are emptied, so that brackets in them do not count."""
    pattern = r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\''

    def shorter(match):
        token = match.group(0)
        return "\n" * token.count("\n") if token.startswith("/") else '"' + ".\n" * token.count("\n") + '"'

    return re.sub(pattern, shorter, text, flags=re.S)


def without_tests(code):
    """Removes every item behind `#[cfg(test)]`."""
    while (start := code.find("#[cfg(test)]")) >= 0:
        depth, end = 0, start + len("#[cfg(test)]")
        while end < len(code):
            letter = code[end]
            depth += (letter in OPEN) - (letter in CLOSE)
            end += 1
            if depth < 0:
                end -= 1
                break
            if depth == 0 and (letter in ";," or letter == "}"):
                break
        code = code[:start] + code[end:]
    return code


def test_modules(path, text):
    """The files and folders of modules that are declared behind `#[cfg(test)]`."""
    folder = path.removesuffix(".rs") if not re.search(r"/(mod|lib|main)\.rs$", path) else path.rsplit("/", 1)[0]
    for name in re.findall(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod (\w+);", text):
        yield from (f"{folder}/{name}.rs", f"{folder}/{name}/")


def count(revision):
    lines = Counter()
    texts = list(sources(revision))
    tests = tuple(test for path, text in texts for test in test_modules(path, text))
    for path, text in texts:
        if path.startswith(tests):
            continue
        parts = path.split("/")
        crate, inner = ("mcprl", parts[1:]) if parts[0] == "src" else (parts[1], parts[3:])
        module = inner[0].removesuffix(".rs")
        lines[crate, module] += sum(1 for line in without_tests(bare(text)).splitlines() if line.strip())
    return lines


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--modules"]
    if any(argument.startswith("-") for argument in arguments) or len(arguments) > 1:
        sys.exit(__doc__)
    now = count(None)
    then = count(arguments[0]) if arguments else None
    for crate in sorted({crate for crate, _ in now}):
        modules = {module: lines for (owner, module), lines in now.items() if owner == crate}
        print(f"{sum(modules.values()):7,}  {crate}")
        if "--modules" in sys.argv:
            for module, lines in sorted(modules.items(), key=lambda item: -item[1]):
                print(f"{lines:11,}  {module}")
    total = sum(now.values())
    print(f"{total:7,}  in all" + (f", {total - sum(then.values()):+,} since {arguments[0]}" if then else ""))


main()
