"""Any causal model with a chat template that has tools: a tiny random one, and templates that do not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from envace_lite import cli, paths
from envace_lite.fidelity import probe_pairs, report
from envace_lite.model.decoding import Prompt
from envace_lite.model.hub import INSTRUCTION, ChatModel, load_model
from envace_lite.model.policy import Policy, PolicyError
from helpers import copied, splits

TEMPLATE = """
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% for call in message.tool_calls or [] %}call {{ call.function.name }} {{ call.function.arguments | tojson }}
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


def test_the_rehearse_role_writes_where_the_response_stands(folder: Path) -> None:
    model = ChatModel.load(folder)
    pair = probe_pairs(splits("orders")["test"][:1])[0]
    prompt = Prompt(pair.messages, pair.task.tools, pair.call.name)
    before, after = model._render(prompt)
    assert before.endswith("<|im_start|>tool\n")
    assert after == "<|im_end|>"
    assert before.count("<|im_start|>tool\n") == len(pair.history) + 1
    assert INSTRUCTION in before
    assert pair.task.tools[0]["function"]["name"] in before
    acting, _ = model._render(Prompt(pair.messages[:-1], pair.task.tools))
    assert acting.endswith("<|im_start|>assistant\n")


def test_a_message_ends_where_the_template_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that goes on after its message is cut there; the log-probability is that of what it wrote."""
    model = ChatModel.load(folder)
    wanted = model.tokenizer("o1:paid ok<|im_end|>rest", add_special_tokens=False).input_ids

    def generate(ids: torch.Tensor, **options: Any) -> Any:
        logits = torch.full((len(wanted), 1, len(model.tokenizer)), -1e4)
        logits[range(len(wanted)), 0, wanted] = 0.0
        sequences = torch.cat([ids, torch.tensor([wanted])], dim=1)
        return type("Output", (), {"sequences": sequences, "logits": tuple(logits)})()

    monkeypatch.setattr(model.model, "generate", generate)
    pair = probe_pairs(splits("orders")["test"][:1])[0]
    ((text, log_p),) = model.write([Prompt(pair.messages, pair.task.tools, pair.call.name)])
    assert text.startswith("o1:paid ok")
    assert log_p == pytest.approx(0.0, abs=1e-3)


def test_a_tiny_random_model_is_probed(folder: Path) -> None:
    told = report(ChatModel.load(folder), splits("orders")["test"][:3])
    assert told.pairs.exact.sum() == 0
    assert not told.pairs.valid.any()
    assert told.table().loc["optimism", "model"] == 0.0
    assert ((told.pairs.confidence >= 0) & (told.pairs.confidence <= 1)).all()


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


def test_compact_policies_are_loaded_as_such(apt: Policy, tmp_path: Path, folder: Path) -> None:
    copied(apt).save(tmp_path)
    assert isinstance(load_model(tmp_path), Policy)
    assert isinstance(load_model(folder), ChatModel)
    with pytest.raises(PolicyError, match="no policy in"):
        load_model(paths.DATA / "tasks")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "does not render tools"),
        (
            TEMPLATE.replace("in messages %}", "in messages if message.role != 'tool' %}"),
            "leaves out the messages of the role 'tool'",
        ),
    ],
)
def test_a_template_without_tools_is_refused(folder: Path, template: str | None, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        ChatModel(LlamaForCausalLM.from_pretrained(folder), make_tokenizer(template))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no causal language model"):
        ChatModel.load(tmp_path)
