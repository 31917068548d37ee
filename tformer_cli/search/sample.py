"""Searches whose sequences do not compete: greedy search, and sampling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.config.schema.decoding import GreedyConfig, SampleConfig
from tformer_cli.device import derive_seed
from tformer_cli.kernels.softmax import log_softmax
from tformer_cli.search.continuous_batching import Search
from tformer_cli.search.engine import Hypothesis, Request, by_score
from tformer_cli.search.state import SearchState, SearchStep, Sequences
from tformer_cli.search.stepper import Stepper

# A vocabulary has at most 2 ** MAX_TREE_DEPTH tokens.
MAX_TREE_DEPTH = 20


@dataclass(slots=True)
class GreedyState(SearchState):
    sequences: Sequences
    scores: Tensor  # (B, 1) sums of scores; NaN if they are not needed
    log_probs: Tensor  # (B, 1) sums of log probabilities, or NaN


class GreedySearch(Search[GreedyConfig, GreedyState]):
    """The best token at each step; the score is the sum of the scores of the tokens.

    Where scores are not needed, logits are not normalized.
    """

    num_beams = 1

    def start(self, requests: Sequence[Request]) -> GreedyState:
        initial = 0.0 if self.scored else math.nan
        scores = torch.full((len(requests), 1), initial, device=self.device)
        return GreedyState(self.processor.start(requests, self.num_beams), scores, scores)

    def step(self, state: GreedyState, stepper: Stepper) -> SearchStep:
        sequences = state.sequences
        if self.scored or self.processor.is_active(sequences):
            next_tokens = self.processor(stepper.step(sequences.last), sequences)
            tokens, scores, log_probs = (part[:, 0] for part in next_tokens.topk(1))
            state.scores = state.scores + scores
            state.log_probs = state.log_probs + log_probs
        else:
            suppress = partial(self.processor.suppress, sequences=sequences)
            tokens = stepper.argmax(sequences.last, suppress)
        sequences.append(tokens)
        return finish(sequences, tokens[:, 0] == self.eos, state.scores, state.log_probs, self.eos)


@dataclass(slots=True)
class SampleState(SearchState):
    sequences: Sequences
    log_probs: Tensor  # (B, K) sums of log probabilities
    finished: Tensor  # (B, K) whether a sequence has ended
    noise: Tensor  # (B, max length, K, MAX_TREE_DEPTH) uniform numbers


class SampleSearch(Search[SampleConfig, SampleState]):
    """`nbest` independent samples of each sentence; their score is their log probability.

    The distribution is the model's, with temperature, top-k and nucleus (top-p). The samples of a
    sentence depend on the seed, their number and that of the sentence alone, not on the batch.
    """

    def start(self, requests: Sequence[Request]) -> SampleState:
        sequences = self.processor.start(requests, self.num_beams)
        log_probs = torch.zeros((len(requests), self.num_beams), device=self.device)
        finished = torch.zeros_like(log_probs, dtype=torch.bool)
        # Steps come first, so the noise of a step does not depend on the maximum length.
        shape = (int(sequences.max_lengths.max()), self.num_beams, MAX_TREE_DEPTH)
        generator = torch.Generator()
        noise = []
        for request in requests:
            generator.manual_seed(derive_seed(self.config.seed, "sample", request.number))
            noise.append(torch.rand(shape, generator=generator))
        return SampleState(sequences, log_probs, finished, torch.stack(noise).to(self.device))

    def step(self, state: SampleState, stepper: Stepper) -> SearchStep:
        sequences = state.sequences
        logits = stepper.step(sequences.last)
        self.processor.suppress(logits, sequences)
        log_probs = log_softmax(logits)
        scores = self.processor.scores(log_probs, sequences)
        # Idle slots may be longer than their noise; their tokens do not matter.
        steps = sequences.lengths.clamp(max=state.noise.shape[1] - 1)
        noise = state.noise[torch.arange(len(steps), device=self.device), steps]
        tokens = sample_categorical(self._probabilities(scores), noise)
        tokens = torch.where(state.finished, self.eos, tokens)
        new = log_probs.gather(-1, tokens[..., None])[..., 0]
        state.log_probs = torch.where(state.finished, state.log_probs, state.log_probs + new)
        sequences.append(tokens)
        state.finished = state.finished | (tokens == self.eos)
        has_ended = state.finished.all(dim=1)
        return finish(sequences, has_ended, state.log_probs, state.log_probs, self.eos)

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Return the distributions (B, K, V) to sample from."""
        config = self.config
        scores = scores / config.temperature
        if 0 < config.top_k < scores.shape[-1]:
            threshold = scores.topk(config.top_k, dim=-1).values[..., -1:]
            is_tied = scores == threshold
            num_tied = config.top_k - (scores > threshold).sum(dim=-1, keepdim=True)
            # Of equally probable tokens those with the lowest ids are kept.
            is_out = (scores < threshold) | (is_tied & (is_tied.cumsum(dim=-1) > num_tied))
            scores = scores.masked_fill(is_out, -math.inf)
        probabilities = scores.softmax(dim=-1)
        if config.top_p < 1:
            ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
            # A token is in the nucleus if those before it sum to less than top_p.
            is_out = ordered.cumsum(dim=-1) - ordered >= config.top_p
            probabilities = probabilities.masked_fill(is_out.scatter(-1, tokens, is_out), 0.0)
        return probabilities


def finish(
    sequences: Sequences, has_ended: Tensor, scores: Tensor, log_probs: Tensor, eos: int
) -> SearchStep:
    """Stop the slots that have ended (B,) or are at their limit, and return their hypotheses.

    `scores` and `log_probs` are those of the sequences, (B, K).
    """
    is_done = sequences.active & (has_ended | (sequences.lengths == sequences.max_lengths))
    # On the CPU from here on, by one transfer a step.
    indices = is_done[:, None].expand_as(scores).cpu().nonzero().t()
    finished: dict[int, list[Hypothesis]] = {slot: [] for slot in indices[0].tolist()}
    if finished:
        slots, beams = indices.to(scores.device)
        sequences.active[slots] = False
        token_ids = sequences.token_ids(slots, beams)
        columns = torch.stack((scores, log_probs))[:, slots, beams].tolist()
        for slot, ids, score, log_prob in zip(
            indices[0].tolist(), token_ids, *columns, strict=True
        ):
            has_eos = eos in ids
            ids = ids[: ids.index(eos)] if has_eos else ids
            finished[slot].append(Hypothesis(ids, log_prob, score, has_eos))
    return SearchStep(None, {slot: by_score(parts) for slot, parts in finished.items()})


def sample_categorical(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Return a token (B, K) for each distribution (B, K, V), by descending a binary tree of sums.

    At each node a uniform number decides between the lower and the upper half of its tokens. So
    rounding, which depends on the batch, moves one boundary per node; for inversion of the
    cumulative sum of all tokens it would move thousands. Sums need not be 1; the noise (B, K,
    MAX_TREE_DEPTH) is in [0, 1).
    """
    vocab_size = probabilities.shape[-1]
    depth = (vocab_size - 1).bit_length()
    sums = [pad(probabilities, (0, 2**depth - vocab_size))]
    for _ in range(depth):
        low, high = sums[-1].chunk(2, dim=-1)
        sums.append(low + high)
    node = torch.zeros_like(noise[..., :1], dtype=torch.long)
    for level in reversed(range(depth)):
        low, both = sums[level].gather(-1, node), sums[level + 1].gather(-1, node)
        is_high = noise[..., level, None] * both >= low
        node = node + is_high * (sums[level].shape[-1] // 2)
    return node[..., 0]
