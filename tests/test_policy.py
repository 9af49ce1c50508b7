"""The policy: log-probabilities and gradients against a plain reference, adapters, files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from envace_lite.model.compact import build_tokenizer, vocabulary
from envace_lite.model.policy import Family, Policy, PolicyError, load_policy, new_policy, with_lora
from helpers import CHAT, conversation, copied, find_task, same_weights, weights

TASKS = [find_task("orders", "goal"), find_task("bank", "calls:3"), find_task("home", "no_tool")]


def families() -> list[Family]:
    """Prompts of different lengths with one to three completions of different lengths."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(7):
        task = TASKS[number % 3]
        prompt = CHAT.render(task.messages, task.tools, prompt="act")
        whole = CHAT.render(conversation(task), task.tools)[len(prompt) :]
        noise = torch.randint(8, len(CHAT.words), (5 + 3 * number,), generator=generator).tolist()
        made.append(Family(prompt[: 20 + 5 * number], [whole, noise, whole[:1]][: 1 + number % 3]))
    return made


def reference(policy: Policy, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies by the plain model, one sequence at a time."""
    log_probs, entropies = [], []
    for family in families():
        for completion in family.completions:
            ids = torch.tensor([[*family.prompt, *completion]])
            logits = policy.model(input_ids=ids).logits[0, len(family.prompt) - 1 : -1] / temperature
            log_p = logits.log_softmax(-1)
            log_probs.append(log_p[range(len(completion)), list(completion)])
            entropies.append(-(log_p.exp() * log_p).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


def spread(policy: Policy) -> Policy:
    """A copy with larger weights, so that its distributions are far from even."""
    wide = copied(policy)
    with torch.no_grad():
        for parameter in wide.model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return wide


def adapted(policy: Policy, seed: int = 0) -> Policy:
    """The same with adapters that are not zero."""
    lora = with_lora(spread(policy), rank=4, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in lora.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)
    return lora


# Log-probabilities and gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("prepare", [spread, adapted])
def test_log_probs_equal_a_plain_reference(
    tiny: Policy, prepare: Callable[[Policy], Policy], temperature: float
) -> None:
    policy = prepare(tiny)
    with torch.no_grad():
        expected = reference(policy, temperature)
    for mine, plain in zip(policy.log_probs(families(), temperature), expected, strict=True):
        torch.testing.assert_close(mine, plain, atol=3e-5, rtol=0)
    assert expected[1].std() > 1e-3


def objective(log_p: Tensor, entropy: Tensor, where: Tensor) -> Tensor:
    """Two terms in which every token has a weight of its own."""
    return (log_p * (where + 1).sin()).sum() + (entropy * (where + 1).cos()).sum()


def gradients(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("prepare", [spread, adapted])
def test_gradients_equal_those_of_a_plain_reference(
    tiny: Policy, prepare: Callable[[Policy], Policy]
) -> None:
    policy = prepare(tiny)
    policy.backward(families(), objective)
    mine = gradients(policy)
    policy.model.zero_grad()
    log_p, entropy = reference(policy)
    objective(log_p, entropy, torch.arange(len(log_p))).backward()
    own = gradients(policy)
    assert mine.keys() == own.keys()
    assert all((grad - own[name]).abs().max() < 1e-3 for name, grad in mine.items())
    assert max(grad.abs().max() for grad in mine.values()) > 0.1


def test_gradients_are_set_and_not_added(tiny: Policy) -> None:
    policy = spread(tiny)
    policy.backward(families(), objective)
    once = gradients(policy)
    policy.backward(families(), objective)
    assert same_weights(gradients(policy), once)


def test_workers_do_not_change_a_bit(tiny: Policy) -> None:
    results = []
    for workers in (1, 2, 3):
        policy = spread(tiny)
        log_p, entropy = policy.backward(families(), objective, workers=workers)
        results.append({**gradients(policy), "log_p": log_p, "entropy": entropy})
    assert same_weights(results[0], results[1])
    assert same_weights(results[0], results[2])


def test_log_probs_leave_no_gradient(tiny: Policy) -> None:
    policy = copied(tiny)
    log_p, _ = policy.log_probs(families())
    assert not log_p.requires_grad
    assert gradients(policy) == {}


# New policies and files ------------------------------------------------------------------------------------


def test_a_record_with_its_value_starts_as_the_sum_of_its_parts() -> None:
    """And stays a row of its own: it is trained apart from them."""
    policy = new_policy(width=32, layers=1, heads=2)
    rows = {word: policy.model.get_input_embeddings().weight[i] for word, i in policy.chat.index.items()}
    assert torch.allclose(rows["o1:pending"], (rows["o1"] + rows["pending"]) / 2**0.5)
    assert torch.allclose(rows["wallet:7"], (rows["wallet"] + rows["7"]) / 2**0.5)
    closeness = torch.cosine_similarity(rows["o1"], torch.stack([rows["o1:sent"], rows["o2:sent"]]))
    assert closeness[0] > 0.5 > closeness[1].abs()


def test_a_new_policy_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, other, different = (
        weights(new_policy(seed=seed, width=32, layers=1, heads=2)) for seed in (3, 3, 4)
    )
    assert same_weights(one, other)
    assert not same_weights(one, different)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_default_size() -> None:
    assert 1e6 < new_policy().num_parameters() < 2e6


@pytest.mark.parametrize("prepare", [spread, adapted])
def test_plain_transformers_can_load_what_is_saved(
    tiny: Policy, prepare: Callable[[Policy], Policy], tmp_path: Path
) -> None:
    policy = prepare(tiny)
    before = weights(policy)
    policy.save(tmp_path / "new" / "folder")
    assert same_weights(weights(policy), before)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "folder")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new" / "folder")
    task = TASKS[0]
    prompt = tokenizer.apply_chat_template(
        task.messages, tools=task.tools, return_tensors="pt", return_dict=False
    )
    assert prompt[0].tolist() == CHAT.render(task.messages, task.tools)
    with torch.no_grad():
        torch.testing.assert_close(
            model(prompt).logits, policy.model(input_ids=prompt).logits, atol=3e-5, rtol=0
        )
    again = load_policy(tmp_path / "new" / "folder")
    assert again.chat.words == policy.chat.words
    for mine, loaded in zip(policy.log_probs(families()), again.log_probs(families()), strict=True):
        torch.testing.assert_close(loaded, mine, atol=3e-5, rtol=0)


def test_all_weights_survive_a_file_bit_for_bit(tiny: Policy, tmp_path: Path) -> None:
    tiny.save(tmp_path)
    assert same_weights(weights(load_policy(tmp_path)), weights(tiny))


# Adapters --------------------------------------------------------------------------------------------------


def test_folding_adapters_leaves_the_policy_as_it_is(tiny: Policy) -> None:
    policy = adapted(tiny)
    before = weights(policy)
    ids = torch.tensor([families()[3].prompt])
    with torch.no_grad():
        unfolded = policy.model(input_ids=ids).logits
        folded = policy.folded()
        assert not folded.is_lora
        torch.testing.assert_close(folded.model(input_ids=ids).logits, unfolded, atol=3e-5, rtol=0)
        assert torch.equal(policy.model(input_ids=ids).logits, unfolded)
    assert (unfolded - spread(tiny).model(input_ids=ids).logits).abs().max() > 0.01
    assert same_weights(weights(policy), before)
    assert not any("lora" in name for name in folded.model.state_dict())


def test_a_plain_policy_is_folded_already(tiny: Policy) -> None:
    assert tiny.folded() is tiny


def test_adapters_have_the_precision_of_the_sampler(tiny: Policy) -> None:
    policy = adapted(tiny)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}


def test_fresh_adapters_change_nothing(tiny: Policy) -> None:
    ids = torch.tensor([families()[0].prompt])
    policy = with_lora(copied(tiny), rank=4)
    assert policy.is_lora
    assert torch.equal(policy.model(input_ids=ids).logits, tiny.model(input_ids=ids).logits)
    assert policy.num_parameters() == tiny.num_parameters()
    trained = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


def test_adapters_leave_the_given_policy_alone(tiny: Policy) -> None:
    """It can be sampled from, saved and given adapters once more, as if it had none."""
    policy = copied(tiny)
    before = weights(policy)
    lora = with_lora(policy, rank=4)
    with torch.no_grad():
        for name, parameter in lora.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    assert same_weights(weights(policy), before)
    assert all(parameter.requires_grad for parameter in policy.model.parameters())
    ids = torch.tensor([families()[0].prompt])
    assert torch.equal(policy.model(input_ids=ids).logits, tiny.model(input_ids=ids).logits)
    with_lora(policy, rank=4)


# What can go wrong with files ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tiny: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tiny.save(folder)
    return folder


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"no policy in .*config\.json is missing.*envace pretrain"):
        load_policy(tmp_path / "none")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_weights_that_are_cut_off(saved: Path, tmp_path: Path, share: float) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    data = (saved / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(PolicyError, match="damaged or cut off"):
        load_policy(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_missing_file(saved: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).unlink()
    with pytest.raises(PolicyError, match="not a compact policy"):
        load_policy(tmp_path)


def test_another_vocabulary(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    build_tokenizer([*vocabulary(), "aubergine"]).save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="another vocabulary"):
        load_policy(tmp_path)


def test_a_broken_config(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(PolicyError, match="not a compact policy"):
        load_policy(tmp_path)


def test_a_folder_that_cannot_be_written(tiny: Policy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PolicyError, match="cannot write the policy to"):
            tiny.save(folder)
