"""The policy: one compact transformer that plays both roles.

What is simplified against the paper: 1.4 million parameters instead of 1.7 and 8 billion, a context of 256 tokens,
float32 on a CPU. It is a plain transformers Llama; `save_pretrained` and `from_pretrained` work without this package.
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
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from envace_lite.model.chat import Chat, VocabularyError, build_tokenizer
from envace_lite.model.shared_prefix import FAMILIES, Branches

CONTEXT = 256
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


@dataclass
class Policy:
    """A causal language model with its chat.

    Args:
        model: what is trained: a plain model (all weights) or a peft model (LoRA).
        chat: the tokenizer and its ids.
    """

    model: nn.Module
    chat: Chat

    @property
    def is_lora(self) -> bool:
        """Whether only adapters are trained."""
        return isinstance(self.model, PeftModel)

    @contextmanager
    def sampler(self) -> Iterator[PreTrainedModel]:
        """The plain model to sample from, with the attention of `shared_prefix` in it.

        LoRA adapters are folded into the weights for the time of the block, since a folded model samples much faster;
        afterwards the very same base weights stand there again, bit for bit.
        """
        if not isinstance(self.model, PeftModel):
            with _family_attention(self.plain):
                yield self.plain
            return
        adapted = [m for m in self.model.modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")]
        if any(module._disable_adapters for module in adapted):  # folded by an outer block
            yield self.plain
            return
        kept = [module.base_layer.weight.data for module in adapted]
        for module in adapted:
            module.base_layer.weight.data = module.base_layer.weight.data + module.get_delta_weight("default")
            module._disable_adapters = True
        try:
            with _family_attention(self.plain):
                yield self.plain
        finally:
            for module, weight in zip(adapted, kept, strict=True):
                module.base_layer.weight.data = weight
                module._disable_adapters = False

    def log_probs(self, families: Sequence[Family], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probability of each token of each completion, and the entropy of the distribution it was drawn from.

        The prompt is read once for all its completions, forward and backward (see `shared_prefix.Branches`). Rollouts in
        groups have prompts longer than what follows, so this more than halves the work of an update.

        Args:
            families: prompts with their completions, as token ids.
            temperature: the logits are divided by it.

        Returns:
            Two tensors of (N,): the tokens of all completions of all families, in their order.
        """
        with torch.no_grad():
            return self.backward(families, None, temperature=temperature)[:2]

    def backward(
        self,
        families: Sequence[Family],
        objective: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]] | None,
        *,
        temperature: float = 1.0,
        workers: int = 1,
    ) -> tuple[Tensor, Tensor, list[float]]:
        """Set the parameters' gradients to those of an objective that is a sum over tokens.

        A few families of similar length are computed at a time, forward and backward, so that everything stays in the
        processor's cache; `workers` threads share them. Gradients are added in a fixed order, so the number
        of workers does not change the result.

        Args:
            families: as for `log_probs`.
            objective: receives log-probabilities, entropies (both (n,), with a graph) and the positions (n,) of these
                tokens among all, and returns one or more terms, whose sum is what the gradients are of.
            workers: threads; each should have one torch thread.

        Returns:
            Log-probabilities and entropies as `log_probs` does, and the norm of each term's gradient.
        """
        order = sorted(range(len(families)), key=lambda i: families[i].length)
        ends = list(accumulate(sum(map(len, family.completions)) for family in families))
        where = [torch.arange(start, end) for start, end in pairwise([0, *ends])]
        parameters = [p for p in self.model.parameters() if p.requires_grad]

        def work(chosen: list[int]) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
            positions = torch.cat([where[i] for i in chosen])
            with torch.set_grad_enabled(objective is not None):
                log_p, entropy = self._log_probs([families[i] for i in chosen], temperature)
                terms = objective(log_p, entropy, positions) if objective else []
                grads = [torch.autograd.grad(t, parameters, retain_graph=t is not terms[-1]) for t in terms]
            return [positions, log_p.detach(), entropy.detach()], grads

        batches: list[list[int]] = [[]]
        for i in order:
            if sum(families[j].length for j in batches[-1]) >= TOKENS_AT_ONCE:
                batches.append([])
            batches[-1].append(i)
        with _family_attention(self.plain):
            if workers > 1:
                with ThreadPoolExecutor(workers) as pool:
                    parts = list(pool.map(work, batches))
            else:
                parts = [work(batch) for batch in batches]
        positions, log_p, entropy = (torch.cat([values[i] for values, _ in parts]) for i in range(3))
        back = positions.argsort()
        by_term = [
            [sum(p) for p in zip(*term, strict=True)]
            for term in zip(*(grads for _, grads in parts), strict=True)
        ]
        for parameter, *grads in zip(parameters, *by_term, strict=True) if by_term else ():
            parameter.grad = sum(grads)
        norms = [torch.stack([grad.norm() for grad in term]).norm().item() for term in by_term]
        return log_p[back], entropy[back], norms

    def _log_probs(self, families: Sequence[Family], temperature: float) -> tuple[Tensor, Tensor]:
        model = self.plain
        branches = Branches([(len(f.prompt), [len(c) for c in f.completions]) for f in families])
        ids = torch.tensor([t for f in families for row in (f.prompt, *f.completions) for t in row])
        states = model.model(
            ids[None], branches.mask, branches.places[None], use_cache=False, branches=branches
        ).last_hidden_state[0]
        logits = model.lm_head(states.index_select(0, branches.before))
        log_p = (logits if temperature in (0.0, 1.0) else logits / temperature).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return log_p.gather(-1, ids[branches.own, None]).squeeze(-1), entropy

    @property
    def plain(self) -> Any:
        """The transformers model, adapters and all."""
        return self.model.base_model.model if isinstance(self.model, PeftModel) else self.model

    def parameters(self) -> int:
        """Number of parameters of the plain model."""
        return sum(p.numel() for name, p in self.model.named_parameters() if "lora_" not in name)

    def folded(self) -> Policy:
        """A plain copy, with the adapters folded into its weights."""
        with self.sampler() as model:
            state = {_plain(key): value for key, value in model.state_dict().items() if "lora_" not in key}
            plain = LlamaForCausalLM(model.config)
            plain.load_state_dict(state)
        return Policy(plain, self.chat)

    def save(self, folder: Path | str) -> None:
        """Write model and tokenizer so that plain transformers can load them (adapters are folded in).

        They are written to a folder within the folder first, so that an interrupt leaves an earlier policy whole.
        """
        folder = Path(folder)
        partial = folder / ".partial"
        try:
            if partial.exists():  # what a process left that was killed while it saved
                shutil.rmtree(partial)
            partial.mkdir(parents=True)
            with _quietly():
                self.folded().plain.save_pretrained(partial)
            self.chat.tokenizer.save_pretrained(partial)
            # The configuration comes last: a folder without one is no policy.
            for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
                path.replace(folder / path.name)
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise PolicyError(f"cannot write the policy to {folder}: {reason or error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def __repr__(self) -> str:
        kind = "LoRA" if self.is_lora else "all weights"
        return f"<Policy: {self.parameters() / 1e6:.2f} M parameters, {len(self.chat.words)} words, trains {kind}>"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' progress bars: a compact model is read in a blink."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _plain(key: str) -> str:
    return key.replace(".base_layer.", ".")


@contextmanager
def _family_attention(model: PreTrainedModel) -> Iterator[None]:
    usual = model.config._attn_implementation
    model.set_attn_implementation(FAMILIES)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ids (B, T) with the rows ending in the last column, and the mask of what is real."""
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    return ids, torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])


def square_mask(real: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T): each token sees itself and the real ones before it."""
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return ((causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool))[:, None]


def new_policy(
    *,
    seed: int = 0,
    width: int = 128,
    layers: int = 6,
    heads: int = 4,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Policy:
    """A fresh compact policy with random weights (about 1.4 million parameters)."""
    chat = Chat(tokenizer or build_tokenizer())
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
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(state)
    _compose(model.get_input_embeddings().weight.data, chat)
    return Policy(model, chat)


def _compose(embeddings: Tensor, chat: Chat) -> None:
    """Let a word that is a record with its value (`o1:pending`) start as the sum of its parts.

    So a query for `o1` finds it before each pair of words was learned, and looking things up begins sooner.
    """
    for word, index in chat.index.items():
        parts = [chat.index[part] for part in word.split(":") if part in chat.index]
        if len(parts) == 2:
            embeddings[index] = embeddings[parts].sum(0) / math.sqrt(2)


def load_policy(folder: Path | str) -> Policy:
    """Load a compact policy from a folder.

    Raises:
        PolicyError: when the folder does not exist, the weights are damaged, or the vocabulary is another one;
            `NotCompactError` when it is another kind of model.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise PolicyError(f"no policy in {folder} (config.json is missing); `envace pretrain` makes a base")
    try:
        chat = Chat(PreTrainedTokenizerFast.from_pretrained(folder))
        size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        if size != len(chat.words):
            raise PolicyError(
                f"{folder}: the weights have {size} words, its tokenizer has {len(chat.words)}; "
                "this checkpoint was made with another vocabulary: make it again or use its own tokenizer"
            )
        with _quietly():
            model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except SafetensorError as error:
        raise PolicyError(
            f"{folder}: the weights are damaged or cut off ({error}); restore or remake them"
        ) from error
    except VocabularyError as error:
        raise NotCompactError(f"{folder}: {error}") from error
    except (
        ImportError,
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # transformers 5.0 asks for another package
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{folder}: not a compact policy ({error})") from error
    return Policy(model, chat)


def with_lora(policy: Policy, *, rank: int = 16, seed: int = 0) -> Policy:
    """The same policy with fresh LoRA adapters on every linear layer; only they are trained.

    Args:
        rank: the adapters' rank; their scale is 1 (alpha = rank).
        seed: of the adapters' first weights.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft still asks transformers by an old name
        model = get_peft_model(copy.deepcopy(policy.model), config)
    torch.random.set_rng_state(state)
    return Policy(model, policy.chat)
