"""Any causal language model of the Hugging Face ecosystem as a policy: its own chat template is the language.

What is simplified against the paper: nothing is fetched, and such a model has never read the compact language. For the
toy worlds it is told in a sentence what a response looks like (`instructed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envace_lite.model.policy import NotCompactError, Policy, PolicyError, load_policy, quietly
from envace_lite.model.shown import WAYS
from envace_lite.model.template import Template
from envace_lite.world import Task

INSTRUCTION = (
    "You also play the tools. A tool's response is one line: the records that it looked up, as key:value, then "
    "ok or error RULE, then the records that it changed. For example: o1:pending needs:pending ok o1:cancelled"
)
"""What a model reads before a conversation of a toy world."""


def load_chat_policy(
    folder: Path | str, tools: str = "auto", *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Policy:
    """A causal language model and its chat template, from a folder or a name in the local cache of the hub.

    Settings of the checkpoint for generation (temperature, penalties) are left aside, but for its end tokens.

    Args:
        tools: `auto` or `plain`, as for `Template`.
        dtype: what it computes with, for example `torch.bfloat16`.
        device: where, for example `cuda`.

    Raises:
        PolicyError: saying what is missing, or why the model or its template will not do.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        with quietly():
            model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype).to(
                device
            )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise PolicyError(f"{folder}: no causal language model can be loaded ({error})") from error
    language = Template(tokenizer, tools)
    # Some checkpoints end a message with tokens that neither the template nor the tokenizer names.
    ends = getattr(model.generation_config, "eos_token_id", None)
    language.also_ends([ends] if isinstance(ends, int) else ends or [])
    return Policy(model.eval(), language)


def load_model(folder: Path | str, tools: str = "auto") -> Policy:
    """A compact policy, or else any causal language model with a chat template; `tools` is for the latter.

    Raises:
        PolicyError: saying what is missing.
        ValueError: there is no such way to show tools.
    """
    if tools not in WAYS:
        raise ValueError(f"tools are shown in a way of {' or '.join(WAYS)}, not {tools!r}")
    try:
        return load_policy(folder)
    except NotCompactError:
        return load_chat_policy(folder, tools)


def instructed(tasks: Iterable[Task]) -> list[Task]:
    """Tasks of toy worlds that tell a model how their tools respond."""
    told = []
    for task in tasks:
        first, *others = task.messages
        told.append(
            replace(task, messages=[{**first, "content": f"{INSTRUCTION}\n{first['content']}"}, *others])
        )
    return told
