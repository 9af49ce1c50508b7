"""A chat model behind an OpenAI-compatible endpoint rehearses; here the endpoint is a server of the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from envace_lite.rehearsal import Gate
from envace_lite.rehearsal.endpoint import EndpointError, endpoint
from envace_lite.world.functions import FunctionTool
from envace_lite.world.result import Rehearsed, Result
from envace_lite.world.tools import ToolCall

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


def pack(state: Any, order: str) -> str:
    """Pack an order.

    Args:
        order: its number
    """
    return "packed"


@contextmanager
def serving(reply: Reply, asked: list[Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body))
            status, answer = reply(body)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def says(text: Any, log_probs: list[float] | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
    if log_probs is not None:
        choice["logprobs"] = {"content": [{"token": "x", "logprob": value} for value in log_probs]}
    return {"choices": [choice]}


TOOLS = [FunctionTool("pack", pack).schema]


def test_a_gate_asks_it_with_the_history() -> None:
    def reply(body: dict[str, Any]) -> tuple[int, Any]:
        """It remembers what was packed: the conversation tells."""
        calls = [message["content"] for message in body["messages"] if message["role"] == "user"]
        twice = calls[-1] in calls[:-1]
        return 200, says(
            '{"error": "ValueError", "message": "packed already"}' if twice else "packed", [-0.1, -0.2]
        )

    asked: list[Any] = []
    with serving(reply, asked) as url:
        ask = endpoint(url, "a-model", TOOLS, situation="The orders are o1 and o2.", key="secret")
        gate = Gate({"pack": lambda order: "packed"}, ask)
        decisions = [gate("pack", order=order)[0] for order in ("o1", "o2", "o1")]
    assert [d.action for d in decisions] == ["commit", "commit", "revise"]
    assert decisions[2].rehearsed == '{"error": "ValueError", "message": "packed already"}'
    assert decisions[0].log_prob == pytest.approx(-0.3)
    path, authorization, body = asked[2]
    assert (path, authorization, body["model"]) == ("/v1/chat/completions", "Bearer secret", "a-model")
    system, *others = body["messages"]
    assert "The orders are o1 and o2." in system["content"]
    assert json.dumps(TOOLS[0]["function"]) in system["content"]
    assert [(m["role"], m["content"]) for m in others] == [
        ("user", 'pack {"order": "o1"}'),
        ("assistant", "packed"),
        ("user", 'pack {"order": "o2"}'),
        ("assistant", "packed"),
        ("user", 'pack {"order": "o1"}'),
    ]


def test_a_server_that_tells_no_probabilities_counts_as_sure() -> None:
    with serving(lambda body: (200, says("[1, 2]")), []) as url:
        told = endpoint(url, "m", TOOLS)(ToolCall("pack", {"order": "o1"}), ())
    assert told == Rehearsed(Result([1, 2], told=False), 0.0)


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (404, {"error": "no model m"}, r"refuses \(404 Not Found\).*no model m"),
        (200, {"choices": []}, "another form than chat completions"),
        (200, says(None), "a text is expected"),
        (200, b"<html>", "another form than chat completions"),
    ],
)
def test_what_a_server_does_wrong_is_said_with_its_address(status: int, answer: Any, message: str) -> None:
    made: list[str] = []
    with serving(lambda body: (status, answer), []) as url:
        gate = Gate({"pack": made.append}, endpoint(url, "m", TOOLS))
        with pytest.raises(EndpointError, match=message) as caught:
            gate("pack", order="o1")
    assert "127.0.0.1" in str(caught.value)
    assert (made, next(iter(gate.journal)).stage) == ([], "held")


def test_no_server() -> None:
    with pytest.raises(EndpointError, match="is the server running"):
        endpoint("http://127.0.0.1:9/v1", "m", TOOLS)(ToolCall("pack", {}), ())
