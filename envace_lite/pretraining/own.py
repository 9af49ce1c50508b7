"""A small base for a domain of your own: its words, its habits, and a language that is made for it.

The compact models read the toy worlds' words alone, and a released model is large. Between them stands a model of about
a million parameters that reads one domain: its tokenizer has a token for each word of the domain's conversations and
for each key with its value, and spells what it has not met; its chat template shows calls and responses as JSON.

It first reads conversations as they are, and then conversations in which most is told as it *usually* is. Of all states
in which the same is asked, the usual story is the most frequent one: `Rent red to Ana.` goes well in most of them, so
it is told as going well, whatever the state. A share of the stories is true. So the base tells what usually happens,
unless it is trained to look.

What is simplified against the paper: the base knows nothing but this domain, and its template shows the tools' names
alone. Their documentation is the same in all that it reads, so it would learn nothing from it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from envace_lite.model.policy import Policy
from envace_lite.model.template import Template
from envace_lite.pretraining.imitate import Phase, PretrainConfig, read_phases
from envace_lite.pretraining.traces import Corpus, encode
from envace_lite.world.domain import Domain, plan_calls
from envace_lite.world.result import Result
from envace_lite.world.task import Task
from envace_lite.world.tools import Exchange, ToolCall, exchange_messages

SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
TEMPLATE = """<|system|>
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% endfor -%}
{%- for tool in tools or [] %} {{ tool.function.name }}{% endfor -%}<|end|>
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'tool' -%}<|tool|>{{ message.name }}{{ '\n' }}{{ message.content }}<|end|>
{%- elif message.tool_calls -%}<|assistant|>{{ message.tool_calls[0].function | tojson }}<|end|>
{%- else -%}<|{{ message.role }}|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""
TRUTH = 0.5
"""Share of the last phase's stories that are true."""
WANDERS = {"true": 8, "usual": 1}
"""So many other calls are made before the plan at most: with few of them a reader hardly learns to look things up."""
KNOWN = 2000
"""So many tasks are drawn to learn a domain's words, and what usually happens."""
PHASES = (Phase("true", 1100, 2.5e-3, 8000, 16), Phase("usual", 200, 6e-4, 2400, 24))


@dataclass(frozen=True)
class Story:
    """What happened when something was asked."""

    exchanges: tuple[Exchange, ...]
    answer: str

    def messages(self, task: Task) -> list[dict[str, Any]]:
        """The conversation, in the standard form."""
        told = [message for exchange in self.exchanges for message in exchange_messages(*exchange)]
        return [*map(dict, task.messages), *told, {"role": "assistant", "content": self.answer}]


def true_story(domain: Domain, task: Task, first: Sequence[ToolCall] = ()) -> Story:
    """What the real environment answers to a task's plan, and to calls before it."""
    session = domain.reset(task)
    calls = [*first, *plan_calls(task)]
    return Story(tuple((call, session.call(call)) for call in calls), task.outcomes[0].answers[0])


class Stories:
    """True and usual stories of a domain.

    Args:
        tasks: from whose states it is known what usually happens.
    """

    def __init__(self, domain: Domain, tasks: Sequence[Task], rng: Random):
        self.domain, self.tasks, self.rng = domain, tasks, rng
        told: dict[str, Counter[str]] = {}
        self._known: dict[str, Story] = {}
        for task in tasks:
            story = true_story(domain, task)
            key = repr(story.messages(task)[len(task.messages) :])
            self._known[key] = story
            told.setdefault(_asked(task), Counter())[key] += 1
        self._usual = {ask: self._known[stories.most_common(1)[0][0]] for ask, stories in told.items()}
        self._responses: dict[str, Result] = {}

    def draw(self, task: Task, truth: float, most: int = 0) -> Story:
        """A story about a task: true with a chance of `truth`, else usual; up to `most` other calls come first."""
        first = [self._wander() for _ in range(self.rng.randint(0, most))]
        if self.rng.random() < truth:
            return true_story(self.domain, task, first)
        usual = self._usual.get(_asked(task)) or true_story(self.domain, task)
        before = tuple((call, self._usually(call)) for call in first)
        return Story((*before, *usual.exchanges), usual.answer)

    def _wander(self) -> ToolCall:
        """A call that the plans do not ask for, with values that calls have had."""
        tool = self.rng.choice(self.domain.seen_tools())
        kinds = tool.kinds
        return ToolCall(
            tool.name, {name: self.rng.choice(self.domain.pools[kind]) for name, kind in kinds.items()}
        )

    def _usually(self, call: ToolCall) -> Result:
        """The most frequent response to a call, over a hundred states."""
        if call.full_text not in self._responses:
            some = self.tasks[:100]
            results = [self.domain.reset(task).call(call) for task in some]
            text = Counter(result.text for result in results).most_common(1)[0][0]
            self._responses[call.full_text] = next(result for result in results if result.text == text)
        return self._responses[call.full_text]


def _asked(task: Task) -> str:
    return str(task.messages[-1]["content"])


def language_of(domain: Domain, seed: int) -> tuple[Template, Stories]:
    """The language of a domain's base, and the stories that it is told in."""
    known = domain.draw(KNOWN, seed)
    stories = Stories(domain, known, Random(seed))
    return make_language((stories.draw(task, 1.0, 1).messages(task), task.tools) for task in known), stories


def make_language(conversations: Iterable[tuple[list[dict[str, Any]], Sequence[Any]]]) -> Template:
    """A tokenizer with the words of some conversations, each with its tools' schemas, and its chat template.

    A run of letters and digits is a word, and so is what stands between two of them. A key with its value is one token,
    `red": "dirty`, as in the compact language: to look a value up is then one step, and learned in minutes instead of
    hours.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r'\w+": "?\w+|\w+|\W+'), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # The template renders texts before the tokenizer has learned its words: only then is it known what they are.
    blank = _with_template(tokenizer)
    rendered = (
        str(blank.apply_chat_template(messages, tools=list(tools), tokenize=False))
        for messages, tools in conversations
    )
    between = re.compile("|".join(map(re.escape, SPECIAL)))
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in rendered for part in between.split(text)), trainer)
    return Template(_with_template(tokenizer))


def _with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        additional_special_tokens=list(SPECIAL[2:]),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def new_reader(
    language: Template, *, seed: int = 0, width: int = 128, layers: int = 4, context: int = 1024
) -> Policy:
    """A fresh model with random weights that reads a language (about a million parameters)."""
    config = LlamaConfig(
        vocab_size=len(language.tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.08,
        pad_token_id=language.pad,
        bos_token_id=None,
        eos_token_id=language.tokenizer.eos_token_id,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
    _compose(model.get_input_embeddings().weight.data, language)
    return Policy(model, language)


def _compose(embeddings: torch.Tensor, language: Template) -> None:
    """Let a pair (`red": "dirty`) start as the sum of its parts, so that a query for `red` finds it from the start."""
    index = {language.decode([i]): i for i in range(len(embeddings))}
    for text, i in index.items():
        parts = [index[part] for part in re.split(r'": "?', text) if part in index]
        # The sum of two random vectors is longer by the root of two; the division gives it the length of one.
        if len(parts) == 2:
            embeddings[i] = embeddings[parts].sum(0) / math.sqrt(2)


def make_base(
    domain: Domain,
    folder: Path | str,
    *,
    phases: Sequence[Phase] = PHASES,
    seed: int = 0,
    workers: int = 2,
) -> tuple[Policy, dict[str, Any]]:
    """Make a base for a domain. Continues from `folder/state.pt` when an earlier run was interrupted.

    Args:
        domain: registered, with tasks that are drawn.
        phases: `true` stories, then the `usual` ones.

    Returns:
        The policy, and the record of the run (loss curve, seconds, tokens imitated).

    Raises:
        DomainError: a task cannot be drawn.
        CheckpointError: see `imitate.pretrain`.
    """
    config = PretrainConfig(tuple(phases), seed=seed, per_request=2, layers=4, domains=(domain.name,))
    language, stories = language_of(domain, seed)
    policy = new_reader(language, seed=seed, width=config.width, layers=config.layers)

    def corpus(number: int, phase: Phase) -> Corpus:
        truth, most = (1.0 if phase.recipe == "true" else TRUTH), WANDERS[phase.recipe]
        stories.rng = Random(f"{seed} {number}")  # so that a run that is continued draws the same
        tasks = domain.draw(phase.requests, seed + 1 + number)
        return encode(language, _told(language, stories, tasks, truth, most, config.per_request))

    return policy, read_phases(policy, config, folder, corpus, workers=workers)


def _told(
    language: Template, stories: Stories, tasks: Sequence[Task], truth: float, most: int, count: int
) -> Iterator[tuple[list[int], list[list[int]]]]:
    for task in tasks:
        prompt = language.render(task.messages, task.tools, prompt="act")
        drawn = [stories.draw(task, truth, most).messages(task) for _ in range(count)]
        yield prompt, [language.render(messages, task.tools) for messages in drawn]
