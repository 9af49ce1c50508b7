"""Other architectures in the place of the compact Llama: the same numbers as a plain forward, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from envace_lite.model.compact import Compact, build_tokenizer
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.policy import CONTEXT, Family, Policy, PolicyError, with_lora
from envace_lite.rollout import Trajectory, rollout
from envace_lite.train import TrainConfig, train
from helpers import splits

CHAT = Compact(build_tokenizer())
SMALL: dict[str, Any] = {
    "vocab_size": len(CHAT.words),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # two query heads share a head of keys
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": CHAT.end,
    "initializer_range": 0.3,
}
TAKEN: dict[str, PretrainedConfig] = {
    "Llama": LlamaConfig(**SMALL),
    "Qwen 2": Qwen2Config(**SMALL),
    "Qwen 3": Qwen3Config(**SMALL, head_dim=8),
    "Mistral": MistralConfig(**SMALL, sliding_window=None),
    "Mistral, a window as long as the context": MistralConfig(**SMALL, sliding_window=CONTEXT),
    "Phi 3": Phi3Config(**SMALL, sliding_window=None),
    "SmolLM 3": SmolLM3Config(**SMALL),
}
REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "Bloom": (BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4), "attention interface"),
    "Mamba": (MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1), "attention interface"),
    "Mistral with a window": (MistralConfig(**SMALL, sliding_window=64), "sliding_attention"),
    "Gemma 3": (Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=64), "sliding_attention"),
    "Gemma 2": (Gemma2Config(**SMALL, head_dim=8, sliding_window=CONTEXT), "logit_softcapping"),
    "gpt-oss": (GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, sliding_window=CONTEXT), "sinks"),
}


def make(config: PretrainedConfig) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", params=TAKEN)
def policy(request: pytest.FixtureRequest) -> Policy:
    return Policy(make(TAKEN[request.param]), CHAT)


def some_families() -> list[Family]:
    draw = torch.Generator().manual_seed(1)

    def ids(length: int) -> list[int]:
        return torch.randint(8, len(CHAT.words), (length,), generator=draw).tolist()

    return [Family(ids(9), [ids(4), ids(1), ids(6)]), Family(ids(3), [ids(5)])]


def plainly(policy: Policy, prompt: Any, completion: Any) -> torch.Tensor:
    """Log-probabilities by a forward of the one whole row, with transformers' own attention."""
    model = policy.folded().model
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
    model.set_attn_implementation("families")
    places = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return torch.stack([logits[place, token] for place, token in zip(places, completion, strict=True)])


def test_log_probabilities_are_those_of_a_plain_forward(policy: Policy) -> None:
    families = some_families()
    got, _ = policy.log_probs(families)
    expected = torch.cat([plainly(policy, f.prompt, row) for f in families for row in f.completions])
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=1e-4)


def test_a_sibling_is_not_seen(policy: Policy) -> None:
    """A negative control: other rows of the family change nothing, and the prompt changes everything."""
    first, _ = some_families()
    alone, _ = policy.log_probs([Family(first.prompt, first.completions[2:])])
    among, _ = policy.log_probs([first])
    torch.testing.assert_close(among[5:], alone, atol=1e-4, rtol=1e-4)
    elsewhere, _ = policy.log_probs([Family(first.prompt[1:], first.completions[2:])])
    assert (elsewhere - alone).abs().max() > 0.01


def test_rollouts_are_sampled_from_the_model_itself(policy: Policy) -> None:
    """The recorded log-probabilities are those of a plain forward over the recorded ids."""
    tasks = splits("orders")["test"][:3]
    for t in rollout(policy, tasks, group_size=2, generator=torch.Generator().manual_seed(0), max_tokens=40):
        sampled = torch.tensor(t.roles) != GIVEN
        expected = plainly(policy, t.prompt, t.ids)[sampled]
        torch.testing.assert_close(torch.tensor(t.log_probs)[sampled], expected, atol=2e-4, rtol=1e-4)


def test_a_step_of_training_moves_both_roles(policy: Policy) -> None:
    """With a reward that differs within each group, and adapters on every linear layer."""

    def odd(trajectory: Trajectory) -> float:
        return float(sum(trajectory.ids) % 2)

    tasks = splits("orders")["train"][:4]
    ids = CHAT.encode("get_order o1 <end> <tool> get_order o1:paid ok <end>")
    roles = torch.tensor(CHAT.role_ids([CHAT.assistant, *ids])[1:])
    family = Family(CHAT.render(tasks[0].messages, tasks[0].tools, prompt="act"), [ids])
    config = TrainConfig(steps=2, prompts=2, group_size=6, lora_rank=4, lr=0.01, warmup=0)
    trained, log = train(policy, tasks, config, reward=odd)
    assert log.frame.informative.max() > 0
    assert max(row.get("drift", 0.0) for row in log.rows) < 1e-3
    moved = (trained.log_probs([family])[0] - policy.log_probs([family])[0]).abs()
    assert moved[roles == ACT].max() > 1e-4
    assert moved[roles == REHEARSE].max() > 1e-4
    assert with_lora(policy).num_parameters() == policy.num_parameters()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_share_a_prompt_is_refused_by_name(name: str) -> None:
    config, why = REFUSED[name]
    with pytest.raises(PolicyError, match=rf"ForCausalLM cannot be a policy here: .*{why}"):
        Policy(make(config), CHAT)
