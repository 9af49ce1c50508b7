"""Any causal model with a chat template that has tools: a tiny random one, and templates that do not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from envace_lite import cli, paths
from envace_lite.fidelity import report
from envace_lite.model.compact import Compact
from envace_lite.model.hub import INSTRUCTION, instructed, load_chat_policy, load_model
from envace_lite.model.policy import Policy, PolicyError
from envace_lite.model.template import Template
from envace_lite.rollout import rollout
from helpers import copied, splits

TEMPLATE = """
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}{{ message.content or '' }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""


def make_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Bytes as tokens, in the manner of a chat model."""
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate([*special, *alphabet])}, []))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.chat_template = template
    return fast


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer and template of its own."""
    path = tmp_path_factory.mktemp("other")
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_model_is_told_how_the_tools_of_a_toy_world_respond() -> None:
    (task,) = instructed(splits("orders")["test"][:1])
    assert task.messages[0]["content"].startswith(INSTRUCTION)
    assert task.messages[0]["content"].endswith(splits("orders")["test"][0].messages[0]["content"])
    assert task.outcomes == splits("orders")["test"][0].outcomes


def test_every_end_that_the_checkpoint_names_ends_a_message(folder: Path, tmp_path: Path) -> None:
    policy = load_model(folder)
    (other,) = policy.chat.tokenizer.encode("~")
    assert not policy.chat.ended([5, other], "act")
    policy.model.generation_config.eos_token_id = [policy.chat.tokenizer.eos_token_id, other]
    policy.save(tmp_path)
    again = load_model(tmp_path)
    for role in ("act", "get_order"):
        assert again.chat.ended([5, other], role)
        assert again.chat.ended([5, again.chat.tokenizer.eos_token_id], role)
    assert not again.chat.ended([other, 5], "act")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never ends a message."""
    monkeypatch.setattr(Template, "longest_message", 8)


@pytest.mark.any_tokens
@pytest.mark.usefixtures("brief")
def test_a_tiny_random_model_is_probed(folder: Path) -> None:
    told = report(load_chat_policy(folder), instructed(splits("orders")["test"][:1]))
    assert told.pairs.exact.sum() == 0
    assert not told.pairs.valid.any()
    assert told.table().loc["optimism", "model"] == 0.0
    assert ((told.pairs.confidence >= 0) & (told.pairs.confidence <= 1)).all()


@pytest.mark.any_tokens
@pytest.mark.usefixtures("brief")
def test_from_the_shell(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv",
        ["envace", "probe", "--policy", str(folder), "--limit", "2", "--page", str(tmp_path / "page.html")],
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "always_success" in capsys.readouterr().out
    assert "rehearsed response" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_each_policy_is_loaded_with_its_language(apt: Policy, tmp_path: Path, folder: Path) -> None:
    copied(apt).save(tmp_path)
    assert isinstance(load_model(tmp_path).chat, Compact)
    assert isinstance(load_model(folder).chat, Template)
    assert load_model(folder, "plain").chat.format == "plain"  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match="no policy in"):
        load_model(paths.DATA / "tasks")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        (
            "{% for message in messages %}{{ message.content }}{% endfor %}",
            'choose Template(tokenizer, tools="plain")',
        ),
        (
            TEMPLATE.replace("in messages %}", "in messages if message.role != 'tool' %}"),
            "does not render tools, calls and responses",
        ),
    ],
)
def test_a_template_without_tools_is_refused(
    folder: Path, tmp_path: Path, template: str | None, message: str
) -> None:
    LlamaForCausalLM.from_pretrained(folder).save_pretrained(tmp_path)
    make_tokenizer(template).save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match=re.escape(message)):
        load_model(tmp_path)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no causal language model"):
        load_chat_policy(tmp_path)


def test_a_model_computes_with_the_bits_that_it_is_told(folder: Path) -> None:
    policy = load_chat_policy(folder, dtype=torch.bfloat16)
    assert policy.model.dtype == torch.bfloat16
    policy.model.generation_config.update(temperature=0.1, repetition_penalty=9.0)  # are not inherited
    (plain,), (told,) = (
        [
            t.log_probs
            for t in rollout(p, splits("orders")["test"][:1], generator=torch.Generator().manual_seed(0))
        ]
        for p in (load_chat_policy(folder, dtype=torch.bfloat16), policy)
    )
    assert plain == told
