"""A domain of plain functions and a model with a chat template, all the way that the compact model goes."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from envace_lite import PrivateRehearsal
from envace_lite.evaluate import evaluate
from envace_lite.fidelity import ask, compare, probe_pairs
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.policy import Family, Policy
from envace_lite.model.template import Template
from envace_lite.rehearsal import ImaginedCall, imagining
from envace_lite.reward import task_success
from envace_lite.rollout import Execute, Rehearse, Trajectory, rollout
from envace_lite.train import TrainConfig, train
from envace_lite.world import Domain, Task, register
from envace_lite.world.domain import plan_calls
from helpers import Scripted
from worlds import WORLDS

PLAIN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_language() -> Template:
    """A token for each byte, and the plain format of tools."""
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate([*special, *alphabet])}, []))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>")
    fast.chat_template = PLAIN
    return Template(fast, "plain")


LANGUAGE = make_language()


@pytest.fixture(params=WORLDS)
def domain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Domain:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    made = WORLDS[request.param]()
    register(made)
    return made


@pytest.fixture(scope="module")
def tiny() -> Policy:
    """A random model that reads four thousand bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(LANGUAGE.tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )
    return Policy(LlamaForCausalLM(config).eval(), LANGUAGE)


def played(domain: Domain, task: Task) -> list[dict[str, object]]:
    """The conversation of a task's plan on the real environment."""
    session, messages = domain.reset(task), [dict(message) for message in task.messages]
    for call in plan_calls(task):
        messages.append({"role": "assistant", "tool_calls": [call.to_message()]})
        messages.append({"role": "tool", "name": call.name, "content": session.call(call).text})
    return [*messages, {"role": "assistant", "content": task.outcomes[0].answers[0]}]


def stand_in(domain: Domain, tasks: list[Task]) -> Scripted:
    """A policy that says in each task what the plan says, and answers each call of the probe as the real tools do."""
    conversations = [LANGUAGE.render(played(domain, task), task.tools) for task in tasks]
    for pair in probe_pairs(tasks):
        told = {"role": "tool", "name": pair.call.name, "content": pair.real.text}
        conversations.append(LANGUAGE.render([*pair.messages, told], pair.task.tools))
    policy = Scripted(conversations, LANGUAGE)
    policy.model.config.max_position_embeddings = 4096
    return policy


def test_a_perfect_stand_in_is_perfect(domain: Domain) -> None:
    """It rehearses every response right, and is worth as much in its own world as in the real one."""
    tasks = domain.draw(6)
    policy, pairs = stand_in(domain, tasks), probe_pairs(tasks)
    assert compare(pairs, [told.response for told in ask(policy, pairs)]).exact.all()
    for responder, role in ((Rehearse(), REHEARSE), (Execute(), GIVEN)):
        for t in rollout(policy, tasks, responder, temperature=0):
            assert (t.stop_reason, task_success(t)) == ("answer", 1.0)
            whole = LANGUAGE.render(played(domain, t.task), t.task.tools)
            assert [*t.prompt, *t.ids] == whole[: len(t.prompt) + len(t.ids)]
            rehearsed = LANGUAGE.role_ids([*t.prompt, *t.ids])[len(t.prompt) :]
            assert t.roles == [role if r == REHEARSE else r for r in rehearsed] or role == GIVEN
    report = evaluate(policy, tasks)
    assert report.value("real_success") == report.value("wm2real") == report.value("fidelity") == 1.0
    assert report.value("wrong_writes") == 0.0


def test_a_stand_in_that_is_told_other_responses_is_not_perfect(domain: Domain) -> None:
    """A negative control: the responses of other tasks."""
    tasks, others = domain.draw(6), domain.draw(12)[6:]
    pairs = probe_pairs(tasks)
    assert not compare(pairs, [told.response for told in ask(stand_in(domain, others), pairs)]).exact.all()


@pytest.mark.any_tokens
def test_a_random_model_is_rolled_out_and_trained(domain: Domain, tiny: Policy) -> None:
    tasks = domain.draw(2)

    def odd(trajectory: Trajectory) -> float:
        return float(sum(trajectory.ids) % 2)

    for t in rollout(tiny, tasks, generator=torch.Generator().manual_seed(0), max_tokens=20):
        again, _ = tiny.log_probs([Family(t.prompt, [t.ids])])
        sampled = torch.tensor(t.roles) != GIVEN
        torch.testing.assert_close(torch.tensor(t.log_probs)[sampled], again[sampled], atol=1e-4, rtol=1e-4)
    task, said = tasks[0], played(domain, tasks[0])
    prompt = LANGUAGE.render(task.messages, task.tools, prompt="act")
    ids = LANGUAGE.render(said, task.tools)
    roles = torch.tensor(LANGUAGE.role_ids(ids)[len(prompt) :])
    family = Family(prompt, [ids[len(prompt) :]])
    config = TrainConfig(steps=2, prompts=2, group_size=4, lora_rank=2, lr=0.01, warmup=0)
    trained, log = train(with_short_episodes(tiny), tasks, config, reward=odd)
    assert log.frame.informative.max() > 0
    moved = (trained.log_probs([family])[0] - tiny.log_probs([family])[0]).abs()
    assert moved[roles == ACT].max() > 1e-4
    assert moved[roles == REHEARSE].max() > 1e-4


def with_short_episodes(policy: Policy) -> Policy:
    short = make_language()
    short.longest_episode = 20
    return Policy(policy.model, short)


@pytest.mark.any_tokens
def test_private_rehearsal_leaves_the_world_as_it_is(domain: Domain, tiny: Policy) -> None:
    (episode,) = PrivateRehearsal(with_short_episodes(tiny), 2).run(domain.draw(1))
    assert episode.stop_reason
    assert not episode.exchanges


def test_what_is_done_behind_the_guard_is_found_and_put_back(domain: Domain) -> None:
    """The state is an object, and a function of the domain is run on it by hand."""
    task = next(task for task in domain.draw(20) if task.outcomes[0].state)
    session = domain.reset(task)
    before = session.digest()

    def by_hand() -> None:
        with imagining(session):
            for call in plan_calls(task):
                domain.tools[call.name].call(session.state, call.arguments)
            assert session.digest() != before

    with pytest.raises(ImaginedCall, match="put back"):
        by_hand()
    assert session.digest() == before
