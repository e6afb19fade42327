"""Does a server that tokenizes the whole history anew give an exported model the tokens that it acted and trained on?

    retokenize.py MODEL TRAJECTORIES TOOLS [--digest DIGEST]

MODEL is what `mcprl export --merge` wrote, TRAJECTORIES a trajectories.parquet or episodes.parquet, TOOLS the
tools.parquet of its `discover`. Renders the messages of each episode with Transformers' `apply_chat_template`, tokenizes
the text with Transformers and with tokenizer.json alone, and compares the ids with those of the episode. Where they
differ, it prints the first difference. A turn that
is not in the template's form (`loose_calls`, `parse_failures`) is rendered in that form, so its tokens may differ; exits
with 1 if those of any other episode do. --digest picks a policy by the beginning of its digest. Needs no torch.
"""

import argparse
import json
import pathlib
import sys

import polars
from tokenizers import Tokenizer
from transformers import AutoTokenizer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("trajectories", type=pathlib.Path)
    parser.add_argument("tools", type=pathlib.Path)
    parser.add_argument("--digest", default="")
    return parser.parse_args()


def in_template_form(message):
    role, text, reasoning, result = (message[key] for key in ("role", "text", "reasoning", "result"))
    form = {"role": role, "content": text}
    if reasoning is not None:
        form["reasoning_content"] = reasoning
    if result is not None:
        form |= {"tool_call_id": result["call_id"], "name": message["name"]}
    functions = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in message["calls"]]
    calls = zip(message["calls"], functions)
    calls = [{"id": call["id"], "type": "function", "function": function} for call, function in calls]
    return form | ({"tool_calls": calls} if calls else {})


def main():
    args = arguments()
    tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    # Some classes of Transformers read the vocabulary alone, and added tokens from elsewhere.
    plain = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    functions = [json.loads(text) for text in polars.read_parquet(args.tools)["function"]]
    # As OpenAI's API declares them.
    tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in functions]
    episodes = polars.read_parquet(args.trajectories)
    episodes = episodes.filter(polars.col("policy").str.starts_with(args.digest))
    if "row_starts" in episodes.columns:
        # Several rows of tokens have the reasoning of earlier turns removed, each in another place.
        episodes = episodes.filter(polars.col("row_starts").is_null())
    count = {True: [0, 0], False: [0, 0]}
    tokens = 0
    for episode in episodes.iter_rows(named=True):
        messages = [in_template_form(message) for message in episode["messages"]]
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        own, in_form = episode["tokens"], episode["loose_calls"] == episode["parse_failures"] == 0
        both = [tokenizer(text, add_special_tokens=False)["input_ids"], plain.encode(text, add_special_tokens=False).ids]
        # A template ends the last turn with more than the model writes.
        different = [ids for ids in both if ids[: len(own)] != own]
        count[in_form][not different] += 1
        tokens += 0 if different else len(own)
        for ids in different[:1]:
            at = next(at for at, (a, b) in enumerate(zip(ids + [None], own)) if a != b)
            shown = [tokenizer.decode(part[max(0, at - 8) : at + 8]) for part in (own, ids)]
            print(f"{episode['id'][:12]} {episode['end']}, token {at} of {len(own)}: {shown[0]!r}, rendered {shown[1]!r}")
    for in_form, name in [(True, "in the template's form"), (False, "with a call in another form")]:
        differ, same = count[in_form]
        print(f"{name}: {same} of {same + differ} episodes have the same tokens")
    print(f"{tokens} tokens are the same")
    if count[True][0]:
        sys.exit(1)


if __name__ == "__main__":
    main()
