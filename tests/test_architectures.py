"""Other architectures in the place of the compact Llama: the numbers of a plain forward, or a refusal by name."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
    SmolLM3Config,
    T5Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from envace_lite.model.compact import Compact, build_tokenizer
from envace_lite.model.decoding import open_decoder
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
WINDOW = 7  # tokens; far fewer than a prompt has
ROW_BY_ROW: dict[str, PretrainedConfig] = {
    "Mistral with a window": MistralConfig(**SMALL, sliding_window=WINDOW),
    "Gemma 3": Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
    "Gemma 2": Gemma2Config(**SMALL, head_dim=8, sliding_window=CONTEXT),
    "gpt-oss": GptOssConfig(
        **SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=WINDOW
    ),
    "GPT-NeoX": GPTNeoXConfig(**SMALL),
}
REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "Mamba": (
        MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1),
        "layers of the kind linear_attention",
    ),
    "LFM 2": (Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]), "layers of the kind conv"),
    "Qwen 3 Next": (
        Qwen3NextConfig(**SMALL, layer_types=["linear_attention", "full_attention"]),
        "layers of the kind linear_attention",
    ),
    "Bloom": (BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4), "how many tokens it reads"),
    "T5": (T5Config(vocab_size=60, d_model=32, num_layers=1, num_heads=4), "no causal language model"),
}


def make(config: PretrainedConfig) -> Any:
    torch.manual_seed(0)
    kind = AutoModelForSeq2SeqLM if isinstance(config, T5Config) else AutoModelForCausalLM
    return kind.from_config(config).eval()


@pytest.fixture(scope="module", params=[*TAKEN, *ROW_BY_ROW])
def policy(request: pytest.FixtureRequest) -> Policy:
    made = Policy(make((TAKEN | ROW_BY_ROW)[request.param]), CHAT)
    assert made.shares_prompts == (request.param in TAKEN) == ("row by row" not in repr(made))
    return made


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
        logits = (
            model(torch.tensor([[*prompt, *completion]]).to(model.device)).logits[0].log_softmax(-1).cpu()
        )
    if policy.shares_prompts:
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
    step_of_training(policy, rounding=1e-3)


def step_of_training(policy: Policy, *, rounding: float) -> None:
    def odd(trajectory: Trajectory) -> float:
        return float(sum(trajectory.ids) % 2)

    tasks = splits("orders")["train"][:4]
    ids = CHAT.encode("get_order o1 <end> <tool> get_order o1:paid ok <end>")
    roles = torch.tensor(CHAT.role_ids([CHAT.assistant, *ids])[1:])
    family = Family(CHAT.render(tasks[0].messages, tasks[0].tools, prompt="act"), [ids])
    config = TrainConfig(steps=2, prompts=2, group_size=6, lora_rank=4, lr=0.01, warmup=0)
    trained, log = train(policy, tasks, config, reward=odd)
    assert log.frame.informative.max() > 0
    assert max(row.get("drift", 0.0) for row in log.rows) < rounding
    moved = (trained.log_probs([family])[0] - policy.log_probs([family])[0]).abs()
    assert moved[roles == ACT].max() > 1e-4
    assert moved[roles == REHEARSE].max() > 1e-4
    assert with_lora(policy).num_parameters() == policy.num_parameters()


@pytest.mark.parametrize("name", REFUSED)
def test_what_keeps_no_keys_is_refused_by_name(name: str) -> None:
    config, why = REFUSED[name]
    with pytest.raises(PolicyError, match=rf"^\w+ cannot be a policy here: .*{why}"):
        Policy(make(config), CHAT)


@pytest.mark.same_bits
@pytest.mark.parametrize("name", [*ROW_BY_ROW, "GPT 2"])
def test_rows_that_share_nothing_read_what_they_hold(name: str) -> None:
    """Rows of prompts of different lengths leave at random; each goes on as the whole sequence does, read anew."""
    # GPT 2 learns a vector for each position: only such a model would notice that padding was counted.
    other = GPT2Config(vocab_size=len(CHAT.words), n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    policy, rng = Policy(make(ROW_BY_ROW.get(name, other)), CHAT), Random(3)
    rows = [ids for ids in ([9, 10, 11, 12, 13, 14, 15, 16, 17], [20, 21], [30, 31, 32]) for _ in range(3)]
    with torch.inference_mode():
        decoder = open_decoder(policy, rows[::3], 3, 12)
        for step in range(12):
            if step % 4 == 3:
                kept = sorted(rng.sample(range(len(rows)), max(1, int(0.7 * len(rows)))))
                decoder.pick(torch.tensor(kept))
                rows = [rows[i] for i in kept]
            for logits, row in zip(decoder.logits, rows, strict=True):
                whole = policy.model(torch.tensor([row])).logits[0, -1]
                torch.testing.assert_close(logits, whole, atol=2e-4, rtol=1e-4)
            tokens = [rng.randrange(8, len(CHAT.words)) for _ in rows]
            rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]
            decoder.step(torch.tensor(tokens))


@pytest.mark.parametrize("name", ["Llama", "Gemma 3"])
def test_half_the_bits_are_enough(name: str) -> None:
    """In bfloat16 log-probabilities come back in float32, near those of all bits, and both roles can be trained."""
    full, half = (Policy(make((TAKEN | ROW_BY_ROW)[name]), CHAT) for _ in range(2))
    half.model.to(torch.bfloat16)
    families = some_families()
    expected, (got, entropy) = full.log_probs(families)[0], half.log_probs(families)
    assert got.dtype == entropy.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 0.3
    sampled = rollout(
        half, splits("orders")["test"][:2], generator=torch.Generator().manual_seed(0), max_tokens=20
    )
    assert all(value <= 0 for trajectory in sampled for value in trajectory.log_probs)
    step_of_training(half, rounding=0.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["Llama", "Gemma 3"])
def test_on_a_gpu_it_is_the_same(name: str) -> None:
    near, far = (Policy(make((TAKEN | ROW_BY_ROW)[name]), CHAT) for _ in range(2))
    far.model.to("cuda")
    for got, expected in zip(far.log_probs(some_families()), near.log_probs(some_families()), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    test_rollouts_are_sampled_from_the_model_itself(far)
    step_of_training(far, rounding=0.01)
