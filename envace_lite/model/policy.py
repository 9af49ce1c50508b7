"""The policy: one compact transformer that plays both roles.

What is simplified against the paper: 1.4 million parameters instead of 1.7 and 8 billion, a context of 256 tokens,
float32 on a CPU. It is a plain transformers Llama; `save_pretrained` and `from_pretrained` work without this package.
Any causal model of transformers can take its place. If its attention is as plain as Llama's, rows that share a prompt
are computed together (`shared_prefix`), else one by one (`plain_rows`); what can do neither is refused by name.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from envace_lite.model.compact import Compact, build_tokenizer
from envace_lite.model.language import Language, VocabularyError
from envace_lite.model.plain_rows import following_logits, obstacle_to_rows
from envace_lite.model.shared_prefix import FAMILIES, branch_logits, obstacle_to_sharing

CONTEXT = 256
"""Tokens that the compact model can read."""
TOKENS_AT_ONCE = 1200
"""About so many tokens are computed together: few enough to stay in the processor's cache."""


class PolicyError(RuntimeError):
    """A policy cannot be loaded or saved; the message says what to do."""


class NotCompactError(PolicyError):
    """What was to be loaded is no compact policy: its tokenizer lacks the words that the engine steers by."""


@dataclass(frozen=True)
class Family:
    """A prompt and the completions that follow it, as token ids."""

    prompt: Sequence[int]
    completions: Sequence[Sequence[int]]

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + sum(map(len, self.completions))


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A sum over tokens: from log-probabilities and entropies (both (n,), with a graph) and the positions (n,) of these
tokens among all to a number."""


@dataclass
class Policy:
    """A causal language model with its chat.

    Args:
        model: what is trained: a plain model (all weights) or a peft model (LoRA).
        chat: the tokenizer and its ids.
    """

    model: Any
    chat: Language

    def __post_init__(self) -> None:
        model = self._transformer
        if obstacle := obstacle_to_rows(model):
            raise PolicyError(f"{type(model).__name__} cannot be a policy here: {obstacle}")
        if self.shares_prompts:
            # Without families it is the usual attention, so this changes nothing for plain uses of the model.
            model.set_attn_implementation(FAMILIES)

    @cached_property
    def shares_prompts(self) -> bool:
        """Whether rows of one prompt are computed together."""
        return not obstacle_to_sharing(self._transformer)

    @property
    def is_lora(self) -> bool:
        """Whether only adapters are trained."""
        return isinstance(self.model, PeftModel)

    @property
    def _transformer(self) -> Any:
        """The model of transformers within, adapters and all."""
        return self.model.get_base_model() if self.is_lora else self.model

    def folded(self) -> Policy:
        """The policy as a plain model: itself, or for LoRA a copy with the adapters folded into its weights.

        Rollouts are sampled from it, since a folded model samples much faster. What is trained stays as it is.
        """
        return Policy(copy.deepcopy(self.model).merge_and_unload(), self.chat) if self.is_lora else self

    @torch.no_grad()
    def log_probs(self, families: Sequence[Family], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probability of each token of each completion, and the entropy of the distribution it was drawn from.

        A prompt is read once for all its completions, forward and backward (see `shared_prefix.Branches`), which more
        than halves the work of an update.

        Returns:
            Two tensors of (N,): the tokens of all completions of all families, in their order.
        """
        return _in_order([[where, *self._log_probs(some, temperature)] for some, where in _batches(families)])

    def backward(
        self, families: Sequence[Family], objective: Objective, *, temperature: float = 1.0, workers: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Set the parameters' gradients to those of an objective that is a sum over tokens.

        `workers` threads, which should have one torch thread each, share the batches of families. Their number does not
        change the result.

        Returns:
            Log-probabilities and entropies, as `log_probs` does.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]

        def work(batch: _Batch) -> tuple[list[Tensor], tuple[Tensor, ...]]:
            some, where = batch
            log_p, entropy = self._log_probs(some, temperature)
            # Not `backward()`: that would add to `.grad`, which the threads share, in the order in which they end.
            grads = torch.autograd.grad(objective(log_p, entropy, where), parameters)
            return [where, log_p.detach(), entropy.detach()], grads

        # A batch goes forward and backward before the next one, so that everything stays in the processor's cache.
        with ThreadPoolExecutor(workers) as pool:
            each = pool.map if workers > 1 else map
            parts, grads = zip(*each(work, _batches(families)), strict=True)
        # Added in the order of the batches, whichever thread was first: sums of floats depend on their order.
        for parameter, *of_batches in zip(parameters, *grads, strict=True):
            parameter.grad = sum(of_batches[1:], of_batches[0])
        return _in_order(parts)

    def _log_probs(self, families: Sequence[Family], temperature: float) -> tuple[Tensor, Tensor]:
        """What `log_probs` says, for families that are computed together."""
        model = self._transformer
        if self.shares_prompts:
            logits = branch_logits(model, [(f.prompt, f.completions) for f in families])
        else:
            logits = following_logits(model, [(f.prompt, row) for f in families for row in f.completions])
        logits = logits.float()  # a model may compute with half the bits; sums over words and tokens do not
        # As `sample` drew them: at temperature 0 it takes the likeliest token, and tells its probability at 1.
        log_p = (logits if temperature in (0.0, 1.0) else logits / temperature).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        own = torch.tensor([token for f in families for row in f.completions for token in row])
        # What leaves a policy is on the CPU, wherever the model is: the objective need not know.
        return log_p.gather(-1, own.to(log_p.device)[:, None]).squeeze(-1).cpu(), entropy.cpu()

    @property
    def compact(self) -> Compact:
        """The language, where only the compact one will do.

        Raises:
            PolicyError: the policy speaks another one.
        """
        if not isinstance(self.chat, Compact):
            raise PolicyError(
                "this works with the compact models of envace_lite alone, and the policy is none"
            )
        return self.chat

    @property
    def context(self) -> int:
        """Most tokens of a conversation."""
        return int(self._transformer.config.max_position_embeddings)

    def num_parameters(self) -> int:
        """Number of parameters, without those of adapters."""
        return sum(p.numel() for name, p in self.model.named_parameters() if "lora_" not in name)

    def save(self, folder: Path | str) -> None:
        """Write model and tokenizer so that plain transformers can load them (adapters are folded in)."""
        # To a folder within the folder first, so that an interrupt leaves an earlier policy whole.
        folder = Path(folder)
        partial = folder / ".partial"
        try:
            if partial.exists():  # what a process left that was killed while it saved
                shutil.rmtree(partial)
            partial.mkdir(parents=True)
            with quietly():
                self.folded().model.save_pretrained(partial)
            self.chat.tokenizer.save_pretrained(partial)
            # The configuration comes last: a folder without one is no policy.
            for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
                path.replace(folder / path.name)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PolicyError(f"cannot write the policy to {folder}: {reason}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def __repr__(self) -> str:
        kind = "LoRA" if self.is_lora else "all weights"
        size, words = self.num_parameters() / 1e6, len(self.chat.tokenizer)
        alone = "" if self.shares_prompts else f", row by row: {obstacle_to_sharing(self._transformer)}"
        return f"<Policy: {size:.2f} M parameters, {words} words, trains {kind}{alone}>"


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bars: a small model is read at once."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


_Batch = tuple[list[Family], Tensor]
"""Some of many families, and where their completions' tokens stand among those of all families: (n,)."""


def _batches(families: Sequence[Family]) -> list[_Batch]:
    """Families of similar length together, about `TOKENS_AT_ONCE` tokens each.

    Two families, the first with completions of 2 and 1 tokens, the second with one of 3: the tokens are numbered
    [0 1 | 2] and [3 4 5]. If the second is the shorter one in all, its batch comes first, with the tokens [3 4 5].
    """
    ends = list(accumulate(sum(map(len, family.completions)) for family in families))
    where = [torch.arange(start, end) for start, end in pairwise([0, *ends])]
    # From the shortest to the longest: families of one length need little padding within their batch.
    groups: list[list[int]] = [[]]
    for i in sorted(range(len(families)), key=lambda i: families[i].length):
        if sum(families[j].length for j in groups[-1]) >= TOKENS_AT_ONCE:
            groups.append([])
        groups[-1].append(i)
    return [([families[i] for i in group], torch.cat([where[i] for i in group])) for group in groups]


def _in_order(parts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Batches of (positions, log-probabilities, entropies), put together in the order of the positions."""
    where, log_p, entropy = map(torch.cat, zip(*parts, strict=True))
    back = where.argsort()
    return log_p[back], entropy[back]


def new_policy(
    *,
    seed: int = 0,
    width: int = 128,
    layers: int = 6,
    heads: int = 4,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Policy:
    """A fresh compact policy with random weights (about 1.4 million parameters)."""
    chat = Compact(tokenizer or build_tokenizer())
    config = LlamaConfig(
        vocab_size=len(chat.words),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.08,  # about 1 / sqrt(width): looking things up starts sooner than with 0.02
        pad_token_id=chat.pad,
        bos_token_id=None,
        eos_token_id=chat.end,
        attn_implementation="sdpa",
    )
    # Weights come from the seed, and torch's own random numbers go on as if nothing had been drawn.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    _compose(model.get_input_embeddings().weight.data, chat)
    return Policy(model, chat)


def _compose(embeddings: Tensor, chat: Compact) -> None:
    """Let a word that is a record with its value (`o1:pending`) start as the sum of its parts.

    So a query for `o1` finds it before each pair of words was learned, and looking things up begins sooner.
    """
    for word, index in chat.index.items():
        parts = [chat.index[part] for part in word.split(":") if part in chat.index]
        # The sum of two random vectors is longer by the root of two; the division gives it the length of one.
        if len(parts) == 2:
            embeddings[index] = embeddings[parts].sum(0) / math.sqrt(2)


def load_policy(folder: Path | str) -> Policy:
    """Load a compact policy from a folder.

    Raises:
        PolicyError: the folder does not exist, its weights are damaged, or they have another vocabulary.
        NotCompactError: it is another kind of model.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise PolicyError(f"no policy in {folder} (config.json is missing); `envace pretrain` makes a base")
    try:
        chat = Compact(PreTrainedTokenizerFast.from_pretrained(folder))
        # transformers would load weights of another vocabulary with a warning, and answer nonsense.
        size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        if size != len(chat.words):
            raise PolicyError(
                f"{folder}: the weights have {size} words, its tokenizer has {len(chat.words)}; "
                "this checkpoint was made with another vocabulary: make it again or use its own tokenizer"
            )
        with quietly():
            model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except SafetensorError as error:
        raise PolicyError(
            f"{folder}: the weights are damaged or cut off ({error}); restore or remake them"
        ) from error
    except VocabularyError as error:
        raise NotCompactError(f"{folder}: {error}") from error
    except PolicyError:
        raise
    # An ImportError: transformers 5.0 asks for another package where a later version says what is wrong.
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise PolicyError(f"{folder}: not a compact policy ({error})") from error
    return Policy(model, chat)


def with_lora(policy: Policy, *, rank: int = 16, seed: int = 0) -> Policy:
    """A policy with fresh LoRA adapters on every linear layer; only they are trained.

    Args:
        rank: the adapters' rank; their scale is 1 (alpha = rank).
        seed: of the adapters' first weights.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        lora_dropout=0.0,
        target_modules="all-linear",  # but for the head
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft still asks transformers by an old name.
        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(policy.model), config)
    return Policy(model, policy.chat)
