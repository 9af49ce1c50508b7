"""Any causal language model of the Hugging Face ecosystem in both roles, as far as it can be asked.

A chat template knows how to render a tool's response, but has no header after which a model would write one. So the
conversation is rendered with a marker in the response's place and cut there: what stands before the marker is the
header of the rehearse role, and what stands after it ends the response.

What is simplified against the paper: the model is only asked, greedily, and never trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envace_lite.model.decoding import Prompt
from envace_lite.model.policy import NotCompactError, Policy, PolicyError, load_policy

_MARKER = "@@response@@"
INSTRUCTION = (
    "You also play the tools. A tool's response is one line: the records that it looked up, as key:value, then "
    "ok or error RULE, then the records that it changed. For example: o1:pending needs:pending ok o1:cancelled"
)
"""What a model reads before the conversation, since it has never seen the compact language."""
LONGEST_RESPONSE = 48
"""Most tokens of a message."""


class ChatModel:
    """A causal language model with a chat template that has tools.

    Args:
        model, tokenizer: from `from_pretrained`.

    Raises:
        PolicyError: the tokenizer has no chat template, or one that leaves out tools, calls or responses.
    """

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model.eval(), tokenizer
        if not tokenizer.chat_template:
            raise PolicyError("this tokenizer has no chat template; the probe needs one that renders tools")
        # A short conversation shows what the template renders: the tool's name is to occur twice, also in the call.
        tool = {"name": "look_up", "description": "", "parameters": {"type": "object", "properties": {}}}
        call = {"type": "function", "function": {"name": "look_up", "arguments": {}}}
        asked, called = {"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": [call]}
        prompt = Prompt([asked, called], [{"type": "function", "function": tool}], "look_up")
        if self._render(prompt)[0].count("look_up") < 2:
            raise PolicyError("this tokenizer's chat template does not render tools and their calls")

    @classmethod
    def load(cls, folder: Path | str) -> ChatModel:
        """Load a model from a folder (or a name in the local cache of the hub); nothing is fetched.

        Raises:
            PolicyError: saying what is missing.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        except (ImportError, OSError, ValueError, KeyError) as error:
            raise PolicyError(f"{folder}: no causal language model can be loaded ({error})") from error
        return cls(model, tokenizer)

    @torch.inference_mode()
    def write(self, prompts: Sequence[Prompt]) -> list[tuple[str, float]]:
        """The message that the model writes greedily after each prompt, with its log-probability."""
        return [self._write(*self._render(prompt)) for prompt in prompts]

    def _render(self, prompt: Prompt) -> tuple[str, str]:
        """The text up to the wanted message, and the text that ends the message."""
        first, *others = prompt.messages
        instructed = {**first, "content": f"{INSTRUCTION}\n{first['content']}"}
        # The act role writes what an assistant would have said, the rehearse role what the tool would have responded.
        role = "assistant" if prompt.role == "act" else "tool"
        marked = {"role": role, "content": _MARKER} | ({"name": prompt.role} if role == "tool" else {})
        messages = [instructed, *others, marked]
        text = self.tokenizer.apply_chat_template(messages, tools=list(prompt.tools), tokenize=False)
        before, found, after = text.partition(_MARKER)
        if not found:
            raise PolicyError(f"this tokenizer's chat template leaves out the messages of the role {role!r}")
        return before, after.strip() or str(self.tokenizer.eos_token)

    def _write(self, text: str, ending: str) -> tuple[str, float]:
        ids = self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        done = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LONGEST_RESPONSE,
            do_sample=False,
            stop_strings=[ending, "\n"],
            tokenizer=self.tokenizer,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id,
        )
        new = done.sequences[0, ids.shape[1] :]
        log_p = torch.cat(done.logits).log_softmax(-1).gather(1, new[:, None]).sum().item()
        written = self.tokenizer.decode(new, skip_special_tokens=True)
        return written.split(ending)[0].split("\n")[0].strip(), log_p

    def __repr__(self) -> str:
        return f"<ChatModel: {self.model.num_parameters() / 1e6:.1f} M parameters, only asked>"


def load_model(folder: Path | str) -> Policy | ChatModel:
    """A compact policy, or any other causal language model whose chat template has tools; else a `PolicyError`."""
    try:
        return load_policy(folder)
    except NotCompactError:
        return ChatModel.load(folder)
