"""Sampling from the distribution of the model, with temperature, top-k and nucleus (top-p)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.config.schema.decoding import SampleConfig
from tformer_cli.device import derive_seed
from tformer_cli.search.logits_processors import LogitsProcessor, RequestState
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.state import SearchState, SearchStep, Sequences, by_score
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import log_softmax

# A vocabulary has at most 2 ** MAX_DEPTH tokens.
MAX_DEPTH = 20


@dataclass(slots=True)
class SampleState(SearchState):
    """State of sampling.

    Attributes:
        requests: of each slot.
        sequences: K samples per slot.
        log_probs: (B, K) sums of log probabilities.
        finished: (B, K) whether a sequence has ended.
        noise: (B, max length, K, MAX_DEPTH) uniform numbers.
    """

    requests: RequestState
    sequences: Sequences
    log_probs: Tensor
    finished: Tensor
    noise: Tensor


class SampleSearch:
    """`nbest` independent samples of each sentence; their score is their log probability.

    The samples of a sentence depend on the seed and its number alone, not on the batch.
    """

    def __init__(
        self,
        config: SampleConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        self.config = config
        self.special_tokens = special_tokens
        self.device = device
        self.num_beams = nbest
        self.processor = LogitsProcessor(config, special_tokens, device)

    def start(self, requests: Sequence[Request]) -> SampleState:
        """Return the state of a slot for each request."""
        shape = (len(requests), self.num_beams)
        state = self.processor.start(requests)
        return SampleState(
            requests=state,
            sequences=Sequences.empty(*shape, self.special_tokens.bos, self.device),
            log_probs=torch.zeros(shape, device=self.device),
            finished=torch.zeros(shape, dtype=torch.bool, device=self.device),
            noise=self._noise(requests, int(state.max_lengths.max())),
        )

    def _noise(self, requests: Sequence[Request], max_length: int) -> Tensor:
        generator = torch.Generator()
        rows = []
        for request in requests:
            generator.manual_seed(derive_seed(self.config.seed, "sample", request.number))
            # Steps come first, so the noise of a step does not depend on `max_length`.
            shape = (max_length, self.num_beams, MAX_DEPTH)
            rows.append(torch.rand(shape, generator=generator))
        return torch.stack(rows).to(self.device)

    def step(self, state: SampleState, stepper: Stepper) -> SearchStep:
        """Append a sampled token to each sequence."""
        sequences, eos = state.sequences, self.special_tokens.eos
        logits = stepper.step(sequences.last)
        self.processor.suppress(logits, sequences)
        log_probs = log_softmax(logits)
        scores = self.processor.scores(log_probs, sequences, state.requests)
        # Idle slots may be longer than their noise; their tokens do not matter.
        steps = sequences.lengths.clamp(max=state.noise.shape[1] - 1)
        noise = state.noise[torch.arange(len(steps), device=self.device), steps]
        tokens = sample_categorical(self._probabilities(scores), noise)
        tokens = torch.where(state.finished, eos, tokens)
        new = log_probs.gather(-1, tokens[..., None])[..., 0]
        state.log_probs = torch.where(state.finished, state.log_probs, state.log_probs + new)
        sequences.append(tokens)
        state.finished = state.finished | (tokens == eos)
        is_last = sequences.lengths == state.requests.max_lengths
        is_done = sequences.active & (state.finished.all(dim=1) | is_last)
        finished = {}
        for slot in is_done.nonzero()[:, 0].tolist():
            finished[slot] = self._hypotheses(state, slot)
            sequences.active[slot] = False
        return SearchStep(None, finished)

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Return the distributions (B, K, V) to sample from."""
        config = self.config
        scores = scores / config.temperature
        if 0 < config.top_k < scores.shape[-1]:
            least = scores.topk(config.top_k, dim=-1).values[..., -1:]
            is_tied = scores == least
            num_tied = config.top_k - (scores > least).sum(dim=-1, keepdim=True)
            # Of equally probable tokens those with the lowest ids are kept.
            is_out = (scores < least) | (is_tied & (is_tied.cumsum(dim=-1) > num_tied))
            scores = scores.masked_fill(is_out, -math.inf)
        probabilities = scores.softmax(dim=-1)
        if config.top_p < 1:
            ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
            # A token is in the nucleus if those before it sum to less than top_p.
            is_out = ordered.cumsum(dim=-1) - ordered >= config.top_p
            probabilities = probabilities.masked_fill(is_out.scatter(-1, tokens, is_out), 0.0)
        return probabilities

    def _hypotheses(self, state: SampleState, slot: int) -> list[Hypothesis]:
        beams = torch.arange(self.num_beams, device=self.device)
        hypotheses = []
        for ids, log_prob, is_finished in zip(
            state.sequences.token_ids(torch.full_like(beams, slot), beams),
            state.log_probs[slot].tolist(),
            state.finished[slot].tolist(),
            strict=True,
        ):
            token_ids = ids[: ids.index(self.special_tokens.eos)] if is_finished else ids
            hypotheses.append(Hypothesis(token_ids, log_prob, log_prob, is_finished))
        return by_score(hypotheses)


def sample_categorical(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Return a token (B, K) for each distribution, by descending a binary tree of sums.

    At each node a uniform number decides between the lower and the upper half of its tokens. So
    rounding, which depends on the batch, moves one boundary per node; for inversion of the
    cumulative sum of all tokens it would move thousands.

    Args:
        probabilities: (B, K, V), not necessarily normalized.
        noise: (B, K, MAX_DEPTH) in [0, 1).
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
