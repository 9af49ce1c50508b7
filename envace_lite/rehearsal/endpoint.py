"""A chat model behind an OpenAI-compatible endpoint as the rehearser of a gate.

What is simplified: the model is only told to play the tools; it was not trained to. One request a call, no retries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from envace_lite.model.language import Schemas
from envace_lite.rehearsal.gate import Rehearser
from envace_lite.world.result import Rehearsed, Result
from envace_lite.world.tools import Exchange, ToolCall

INSTRUCTION = """You play the environment behind these tools:

{tools}

{situation}

Each message of the user is a call. Answer with the response that the tool would give, and with nothing else: the value
that it returns, as JSON, or {{"error": "its class", "message": "its text"}} if the call has to fail. Remember what the
calls before have changed."""


class EndpointError(RuntimeError):
    """No rehearsed response could be had; the message names the address and what to do."""


def endpoint(
    url: str,
    model: str,
    tools: Schemas,
    *,
    situation: str = "",
    key: str | None = None,
    timeout: float = 60.0,
) -> Rehearser:
    """A rehearser that asks a server for its chat completions.

    Args:
        url: of the API, up to its version: `http://127.0.0.1:8000/v1`.
        model: the server's name for it.
        tools: JSON schemas of the tools (see `Tool.schema`).
        situation: what the model should know of the state before the first call.
        key: sent as the bearer token.
        timeout: seconds that the server may be silent.

    Returns:
        A rehearser, which raises `EndpointError`. Where the server tells log-probabilities, it hands them on.
    """
    schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    system = INSTRUCTION.format(tools=schemas, situation=situation).replace("\n\n\n\n", "\n\n")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    address = f"{url.rstrip('/')}/chat/completions"

    def rehearse(call: ToolCall, history: Sequence[Exchange]) -> Rehearsed:
        messages = [{"role": "system", "content": system}]
        for earlier, response in history:
            messages.append({"role": "user", "content": earlier.full_text})
            messages.append({"role": "assistant", "content": response.text})
        messages.append({"role": "user", "content": call.full_text})
        body = {"model": model, "messages": messages, "temperature": 0, "logprobs": True}
        request = Request(address, json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=timeout) as answer:
                return _read(json.load(answer))
        except HTTPError as error:
            with error:
                said = error.read(300).decode(errors="replace")
            raise EndpointError(f"{address} refuses ({error.code} {error.reason}): {said}") from error
        except (URLError, TimeoutError, ConnectionError) as error:
            raise EndpointError(f"{address} does not answer ({error}); is the server running?") from error
        except (ValueError, LookupError, TypeError) as error:
            raise EndpointError(
                f"{address} answers in another form than chat completions ({error!r})"
            ) from error

    return rehearse


def _read(answer: Any) -> Rehearsed:
    """The response and its log-probability; 0 where the server does not tell it.

    Raises:
        ValueError, LookupError, TypeError: the answer has another form.
    """
    choice = answer["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise TypeError(f"a text is expected, not {text!r}")
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return Rehearsed(Result.parse(text), float(sum(token["logprob"] for token in tokens)))
