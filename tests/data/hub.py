"""Resolve names against a hub on this machine, which answers as the real one does; print one line a name.

Run in a process of its own, because huggingface_hub reads its settings once, when it is imported.
"""

import json
import os
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 256}
REMOTE = {"model_type": "new", "auto_map": {"AutoConfig": "configuration.Config"}}
ANSWERS = {
    "/someone/fine": (200, "", json.dumps(CONFIG)),
    "/someone/remote": (200, "", json.dumps(REMOTE)),
    "/someone/missing": (401, "RepoNotFound", ""),
    "/someone/gated": (403, "GatedRepo", ""),
    "/someone/empty": (404, "EntryNotFound", ""),
    "/someone/broken": (200, "", "{not json"),
}
PATHS = []


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        PATHS.append(self.path)
        repository = self.path.partition("/resolve/")[0]
        status, code, text = ANSWERS.get(repository, (404, "RepoNotFound", ""))
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        else:
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{abs(hash(text)):040x}"')
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
    os.environ.pop(proxy, None)
os.environ |= {
    "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    "HF_HOME": tempfile.mkdtemp(),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_XET": "1",
}
os.environ.pop("HF_HUB_OFFLINE", None)

from autotune.errors import InputError  # noqa: E402
from autotune.models.resolve import resolve  # noqa: E402

results = {}


def attempt(key, name, **options):
    try:
        results[key] = resolve(name, base=Path(), **options).model_dump()
    except InputError as error:
        results[key] = str(error)


for repository in ANSWERS:
    attempt(repository.rpartition("/")[2], repository[1:])
attempt("trusted", "someone/remote", trust_remote_code=True)
results["fetched"] = sorted({path.rpartition("/")[2] for path in PATHS if "/resolve/" in path})
server.shutdown()
server.server_close()
attempt("cached", "someone/fine")
attempt("offline", "someone/other")
results["loaded"] = [name for name in ("torch", "transformers") if name in sys.modules]
print(json.dumps(results))
