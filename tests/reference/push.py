"""The requests of `mcprl push` and of huggingface_hub to a mock of the hub are the same.

    tests/reference/push.py MCPRL      # see push.sh
"""

import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

LOG = []


class Mock(http.server.BaseHTTPRequestHandler):
    """Says yes to everything; safetensors are objects of Git LFS."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            whole = b""
            while size := int(self.rfile.readline().strip(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def answer(self):
        body, path, status, reply = self.body(), self.path, 200, {}
        here = f"http://127.0.0.1:{self.server.server_port}"
        if "/preupload/" in path:
            mode = lambda file: "lfs" if file["path"].endswith(".safetensors") else "regular"
            reply = {
                "files": [
                    {"path": file["path"], "uploadMode": mode(file), "shouldIgnore": False}
                    for file in json.loads(body)["files"]
                ]
            }
        elif path.endswith("/objects/batch"):
            actions = lambda oid: {
                "upload": {"href": f"{here}/store/{oid}", "header": {}},
                "verify": {"href": f"{here}/verify", "header": {}},
            }
            objects = json.loads(body)["objects"]
            reply = {
                "transfer": "basic",
                "objects": [{**entry, "authenticated": True, "actions": actions(entry["oid"])} for entry in objects],
            }
        elif "/commit/" in path:
            reply = {"success": True, "commitOid": "a" * 40, "commitUrl": f"{here}/org/name/commit/1", "hookOutput": ""}
        elif path == "/api/repos/create":
            reply = {"url": f"{here}/org/name", "name": "org/name", "id": "1"}
        elif self.command == "GET":
            status = 404
        LOG.append((self.command, path, self.headers.get("authorization"), body))
        text = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_HEAD = answer


def said():
    """The uploading requests so far, with their bodies as values; the log is empty afterwards."""
    requests = []
    for method, path, token, body in LOG:
        if method == "GET" or "validate-yaml" in path:
            continue
        if path.startswith("/store/"):
            requests.append((method, path, token, body))
            continue
        # The order of a commit's files means nothing.
        lines = [json.loads(line) for line in body.decode().splitlines()]
        requests.append((method, path, token, sorted(lines, key=json.dumps)))
    LOG.clear()
    return requests


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    os.environ |= {"HF_ENDPOINT": url, "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "sub").mkdir()
        (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n# x\n")
        (folder / "sub/agent.json").write_text('{"a": 1}\n')
        (folder / "empty.txt").touch()
        (folder / "adapter_model.safetensors").write_bytes(random.Random(1).randbytes(100_000))
        for kind, more in [(None, []), ("dataset", ["--dataset"])]:
            api = HfApi()
            api.create_repo("org/name", private=True, repo_type=kind)
            api.upload_folder(repo_id="org/name", folder_path=folder, commit_message="Upload", repo_type=kind)
            theirs = said()
            words = [sys.argv[1], "push", folder, "--to", "hub:org/name", "--message", "Upload", "--yes", *more]
            subprocess.run(words, check=True, capture_output=True)
            ours = said()
            assert len(ours) == len(theirs), (ours, theirs)
            for one, other in zip(ours, theirs):
                if one[1].startswith("/store/"):
                    assert one == other and one[2] is None, (one[:3], other[:3])
                else:
                    assert one == other, (one, other)
            print(f"{kind or 'model'}: {len(ours)} requests, the same as huggingface_hub's")


if __name__ == "__main__":
    main()
