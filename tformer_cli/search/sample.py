"""Sampling: tokens drawn at random, as probable as the model says."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.config.schema.decoding import SampleConfig
from tformer_cli.device import derive_seed
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.rows import Sequences
from tformer_cli.search.rules import LogitsProcessor
from tformer_cli.search.search import SearchStep
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import log_softmax

# A vocabulary has at most 2^FORKS tokens.
FORKS = 20


class SampleSearch:
    """K translations of each sentence, drawn apart; their score is their log probability.

    What is drawn for a sentence is a function of the seed, its number and the step, whoever its
    company is.
    """

    def __init__(
        self,
        config: SampleConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        """Set the rules.

        Args:
            config: temperature, what is drawn among, and the rules.
            special_tokens: start, end and suppressed ids.
            device: where the logits are.
            nbest: K.
        """
        self.config = config
        self.special_tokens = special_tokens
        self.device = device
        self.num_beams = nbest
        self.rules = LogitsProcessor(config, special_tokens, device)

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self.rules.start(requests)
        self.rows = Sequences(len(requests), self.num_beams, self.special_tokens.bos, self.device)
        self.log_probs = torch.zeros((len(requests), self.num_beams), device=self.device)
        self.finished = torch.zeros_like(self.log_probs, dtype=torch.bool)
        self.noise = self._drawn(requests)

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        self.rules.insert(places, requests)
        self.rows.insert(places)
        self.log_probs[places] = 0.0
        self.finished[places] = False
        noise = self._drawn(requests)
        more = noise.shape[1] - self.noise.shape[1]
        self.noise = pad(self.noise, (0, 0, 0, 0, 0, max(0, more)))
        self.noise[places, : noise.shape[1]] = noise

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        self.rules.select(places)
        self.rows.select(places)
        self.log_probs, self.finished = self.log_probs[places], self.finished[places]
        self.noise = self.noise[places]

    def advance(self, stepper: Stepper) -> SearchStep:
        """Let each row grow by a token."""
        rows, eos = self.rows, self.special_tokens.eos
        logits = stepper.step(rows.last)
        self.rules.suppress_tokens(logits, rows)
        log_probs = log_softmax(logits)
        scores = self.rules.apply(log_probs, rows) if self.rules.has_effect else log_probs
        # The last draw of idle places repeats; nobody looks at it.
        steps = rows.lengths.clamp(max=self.noise.shape[1] - 1)
        noise = self.noise[torch.arange(len(steps), device=self.device), steps]
        tokens = sample_categorical(self._probabilities(scores), noise)
        tokens = torch.where(self.finished, eos, tokens)
        chosen = log_probs.gather(-1, tokens[..., None])[..., 0]
        self.log_probs = torch.where(self.finished, self.log_probs, self.log_probs + chosen)
        rows.append(tokens)
        self.finished = self.finished | (tokens == eos)
        leaving = rows.active & (self.finished.all(dim=1) | (rows.lengths == self.rules.most))
        ended = {}
        for place in leaving.nonzero()[:, 0].tolist():
            ended[place] = self._hypotheses(place)
            rows.active[place] = False
        return SearchStep(None, ended)

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Return what is drawn by, (B, K, V), from what the tokens are ranked by."""
        config = self.config
        scores = scores / config.temperature
        if 0 < config.top_k < scores.shape[-1]:
            least = scores.topk(config.top_k, dim=-1).values[..., -1:]
            is_tied = scores == least
            num_tied = config.top_k - (scores > least).sum(dim=-1, keepdim=True)
            # Of equally probable tokens those with the lowest ids are in.
            is_out = (scores < least) | (is_tied & (is_tied.cumsum(dim=-1) > num_tied))
            scores = scores.masked_fill(is_out, -math.inf)
        probabilities = scores.softmax(dim=-1)
        if config.top_p < 1:
            ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
            # A token is in where those before it do not reach the share yet.
            is_out = ordered.cumsum(dim=-1) - ordered >= config.top_p
            probabilities = probabilities.masked_fill(is_out.scatter(-1, places, is_out), 0.0)
        return probabilities

    def _drawn(self, requests: Sequence[Request]) -> Tensor:
        """Return uniform numbers (B, steps, K, FORKS), a function of the seed and of each line."""
        most = int(self.rules.most.max())
        generator = torch.Generator()
        rows = []
        for request in requests:
            generator.manual_seed(derive_seed(self.config.seed, "sample", request.number))
            # Drawn step after step, so that the limit of the company changes nothing.
            rows.append(torch.rand((most, self.num_beams, FORKS), generator=generator))
        return torch.stack(rows).to(self.device)

    def _hypotheses(self, place: int) -> list[Hypothesis]:
        found = []
        numbers = torch.arange(self.num_beams, device=self.device)
        for ids, log_prob, finished in zip(
            self.rows.written(torch.full_like(numbers, place), numbers),
            self.log_probs[place].tolist(),
            self.finished[place].tolist(),
            strict=True,
        ):
            if finished:
                ids = ids[: ids.index(self.special_tokens.eos)]
            found.append(Hypothesis(ids, log_prob, log_prob, finished))
        return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)


def sample_categorical(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Return a token (B, K) for each row, drawn by its probability.

    A draw goes down a tree of sums. At each fork a number of its own says in which half of the
    tokens it goes on, so what company does to the last digits moves one boundary a fork. Among the
    sums of all tokens, where one number would do, it moves thousands.

    Args:
        probabilities: (B, K, V), up to a factor.
        noise: (B, K, FORKS) in [0, 1).
    """
    vocab_size = probabilities.shape[-1]
    depth = (vocab_size - 1).bit_length()
    sums = [pad(probabilities, (0, 2**depth - vocab_size))]
    for _ in range(depth):
        low, high = sums[-1].chunk(2, dim=-1)
        sums.append(low + high)
    place = torch.zeros_like(noise[..., :1], dtype=torch.long)
    for level in reversed(range(depth)):
        low, both = sums[level].gather(-1, place), sums[level + 1].gather(-1, place)
        is_high = noise[..., level, None] * both >= low
        place = place + is_high * (sums[level].shape[-1] // 2)
    return place[..., 0]
