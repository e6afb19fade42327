"""Tokens and top tokens of llama.cpp, by the server in the package xllamacpp (PyPI), where llama-cpp-python cannot be built:

    python llama_server.py FILE.gguf IN.json OUT.json

IN holds `texts`, whose tokens are wanted, or `ids` and `rows`: sequences of tokens, and the positions whose top token is
wanted. OUT holds `tokens` and `top`.
"""

import json
import sys
import urllib.request

import xllamacpp


def main():
    file, given, found = sys.argv[1:]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_ctx = 2048
    server = xllamacpp.Server(parameters)

    def post(path, body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request))

    def tokens(text):
        return post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]

    def top(ids):
        options = {"n_predict": 1, "n_probs": 1, "temperature": 0}
        return post("/completion", {"prompt": ids, **options})["completion_probabilities"][0]["id"]

    with open(given) as file:
        given = json.load(file)
    out = {"tokens": [tokens(text) for text in given.get("texts", [])]}
    pairs = zip(given.get("ids", []), given.get("rows", []))
    out["top"] = [[top(ids[: row + 1]) for row in rows] for ids, rows in pairs]
    with open(found, "w") as file:
        json.dump(out, file)


main()
