import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from xml.etree.ElementTree import fromstring

import pytest

from autotune.errors import InputError
from autotune.results.changes import NightChange, NightComparison, Uncompared
from autotune.results.junit import junit
from autotune.results.summary import headline, markdown
from autotune.results.thresholds import Thresholds
from autotune.results.webhook import message, post
from tests.results.stores import cell

NIGHT = "20261101T000000Z"
ODD = "a <b> & | `c` \x1b[31m \ud800 ]]>"
FOUND = NightComparison(
    sweep="nightly", night=NIGHT, thresholds=Thresholds(),
    cells=(cell(name="a"), cell(name=ODD.replace("\ud800", "")), cell(name="c", state="failed"), cell(name="d")),
    changes=(
        NightChange(cell="a", kind="throughput", regressed=True, what="10% less", against=NIGHT, chance=1e-5,
               beside=("torch: 2.12 -> 2.13",)),
        NightChange(cell="a", kind="peak", regressed=True, what="3% more", against=NIGHT),
        NightChange(cell=ODD.replace("\ud800", ""), kind="winner", regressed=False, what=ODD, against=NIGHT),
    ),
    uncompared=(
        Uncompared(cell="c", state="failed", why="the node is gone"),
        Uncompared(cell="d", state="proven", why="no night before"),
    ),
)  # fmt: skip


def test_junit_has_a_case_for_each_cell_and_survives_any_text():
    root = fromstring(junit(FOUND))
    suite = root[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    a, odd, c, d = suite
    assert a.find("failure").get("type") == "throughput"
    assert "torch: 2.12 -> 2.13" in a.find("failure").text
    assert odd.find("failure") is None
    assert "<b>" in odd.find("system-out").text
    assert c.find("error").get("message") == "the node is gone"
    assert d.find("skipped") is not None


def test_the_summary_says_first_what_regressed_and_shows_nothing_as_markup():
    text = markdown(FOUND)
    assert (
        text.splitlines()[0] == "## nightly, night 20261101T000000Z: 1 of 2 cells regressed, 2 not compared"
    )
    assert (
        text.index("Regressed")
        < text.index("Also changed")
        < text.index("Not compared")
        < text.index("| cell |")
    )
    assert "<b>" not in text
    assert "torch: 2.12 -&gt; 2.13" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(line.count(" | ") == 5 for line in rows)
    assert "nothing regressed" in headline(FOUND.model_copy(update={"changes": ()}))


@pytest.fixture
def server():
    """Return a server that answers as told, and keeps what was posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            self.server.posted.append(
                (self.path, self.headers["Content-Type"], json.loads(self.rfile.read(length)))
            )
            self.server.hold.wait(10)
            self.send_response(self.server.status)
            self.end_headers()
            self.wfile.write(b"said \x1b[31m so")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.posted, server.status, server.hold = [], 200, threading.Event()
    server.hold.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}/hook/secret?key=1"
    yield server
    server.hold.set()
    server.shutdown()
    server.server_close()


def test_a_webhook_is_told_in_plain_json(server):
    assert post(server.url, message(FOUND)) is None
    ((path, kind, body),) = server.posted
    assert (path, kind) == ("/hook/secret?key=1", "application/json")
    assert body["text"].startswith("nightly, night")
    assert (body["regressed"], body["exit_code"], body["changes_in_all"]) == (1, 5, 3)
    assert body["changes"][0]["beside"] == ["torch: 2.12 -> 2.13"]


def test_what_a_webhook_refuses_is_told_without_its_secret_path(server):
    server.status = 500
    why = post(server.url, {})
    assert why is not None
    assert "500" in why
    assert "secret" not in why
    assert "\x1b" not in why


def test_a_webhook_that_does_not_answer_holds_nobody_up(server):
    server.hold.clear()
    assert post(server.url, {}, timeout=0.2) is not None


def test_a_webhook_that_is_not_there_is_told():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    assert post(url, {}) is not None


@pytest.mark.parametrize(
    "url", ["ftp://host/", "host", "http://", "http://host:99999/", "http://a b/", "http://[::1"]
)
def test_a_url_that_cannot_be_posted_to_is_the_users_mistake(url):
    with pytest.raises(InputError) as caught:
        post(url, {})
    assert caught.value.about == ("webhook",)
