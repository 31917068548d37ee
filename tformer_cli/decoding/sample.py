"""Sampling: tokens drawn at random, as probable as the model says."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import SampleConfig
from tformer_cli.decoding.candidates import log_softmax
from tformer_cli.decoding.hypothesis import Hypothesis
from tformer_cli.decoding.processors import TokenRoles
from tformer_cli.decoding.request import Request
from tformer_cli.decoding.rows import Rows
from tformer_cli.decoding.rules import Rules
from tformer_cli.decoding.search import Advance
from tformer_cli.decoding.stepper import Stepper
from tformer_cli.device import derive_seed


class SampleSearch:
    """K translations of each sentence, drawn apart; their score is their log probability.

    What is drawn for a sentence is a function of the seed, its number and the step, whoever its
    company is.
    """

    def __init__(
        self, config: SampleConfig, roles: TokenRoles, device: torch.device, *, nbest: int = 1
    ) -> None:
        """Set the rules.

        Args:
            config: temperature, what is drawn among, and the rules.
            roles: start, end and suppressed ids.
            device: where the logits are.
            nbest: K.
        """
        self.config = config
        self.roles = roles
        self.device = device
        self.num_rows = nbest
        # A draw is of float64, which Apple's GPU lacks.
        self.drawing_device = torch.device("cpu") if device.type == "mps" else device
        self.rules = Rules(config, roles, device)

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self.rules.start(requests)
        self.rows = Rows(len(requests), self.num_rows, self.roles.start_id, self.device)
        self.log_probs = torch.zeros((len(requests), self.num_rows), device=self.device)
        self.finished = torch.zeros_like(self.log_probs, dtype=torch.bool)
        self.noise = self._drawn(requests)

    def admit(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        self.rules.admit(places, requests)
        self.rows.admit(places)
        self.log_probs[places] = 0.0
        self.finished[places] = False
        noise = self._drawn(requests)
        more = noise.shape[2] - self.noise.shape[2]
        self.noise = torch.nn.functional.pad(self.noise, (0, max(0, more)))
        self.noise[places.to(self.drawing_device), :, : noise.shape[2]] = noise

    def keep(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        self.rules.keep(places)
        self.rows.keep(places)
        self.log_probs, self.finished = self.log_probs[places], self.finished[places]
        self.noise = self.noise[places.to(self.drawing_device)]

    def advance(self, stepper: Stepper) -> Advance:
        """Let each row grow by a token."""
        rows, end_id = self.rows, self.roles.end_id
        logits = stepper.step(rows.last)
        self.rules.forbid(logits, rows)
        log_probs = log_softmax(logits)
        scores = self.rules.apply(log_probs, rows) if self.rules.has_effect else log_probs
        # The last draw of idle places repeats; nobody looks at it.
        steps = rows.lengths.clamp(max=self.noise.shape[2] - 1)[:, None, None]
        noise = self.noise.gather(2, steps.expand(-1, self.num_rows, 1).to(self.drawing_device))
        tokens = drawn(self._probabilities(scores).to(self.drawing_device), noise).to(self.device)
        tokens = torch.where(self.finished, end_id, tokens)
        chosen = log_probs.gather(-1, tokens[..., None])[..., 0]
        self.log_probs = torch.where(self.finished, self.log_probs, self.log_probs + chosen)
        rows.append(tokens)
        self.finished = self.finished | (tokens == end_id)
        leaving = rows.active & (self.finished.all(dim=1) | (rows.lengths == self.rules.most))
        ended = {}
        for place in leaving.nonzero()[:, 0].tolist():
            ended[place] = self._hypotheses(place)
            rows.active[place] = False
        return Advance(None, ended)

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Return what is drawn by, (B, K, V), from what the tokens are ranked by."""
        config = self.config
        scores = scores / config.temperature
        if 0 < config.top_k < scores.shape[-1]:
            least = scores.topk(config.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < least, -math.inf)
        probabilities = scores.softmax(dim=-1)
        if config.top_p < 1:
            ordered, places = probabilities.sort(dim=-1, descending=True)
            # A token is in where those before it do not reach the share yet.
            is_out = ordered.cumsum(dim=-1) - ordered >= config.top_p
            probabilities = probabilities.masked_fill(is_out.scatter(-1, places, is_out), 0.0)
        return probabilities

    def _drawn(self, requests: Sequence[Request]) -> Tensor:
        """Return uniform numbers (B, K, steps), a function of the seed and of each number."""
        most = int(self.rules.most.max())
        generator = torch.Generator()
        rows = []
        for request in requests:
            generator.manual_seed(derive_seed(self.config.seed, "sample", request.number))
            # Drawn step after step, so that the limit of the company changes nothing.
            rows.append(torch.rand((most, self.num_rows), generator=generator, dtype=torch.float64))
        return torch.stack(rows).transpose(1, 2).to(self.drawing_device)

    def _hypotheses(self, place: int) -> list[Hypothesis]:
        found = []
        numbers = torch.arange(self.num_rows, device=self.device)
        for ids, log_prob, finished in zip(
            self.rows.written(torch.full_like(numbers, place), numbers),
            self.log_probs[place].tolist(),
            self.finished[place].tolist(),
            strict=True,
        ):
            if finished:
                ids = ids[: ids.index(self.roles.end_id)]
            found.append(Hypothesis(ids, log_prob, log_prob, finished))
        return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)


def drawn(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Return the token (B, K) that each uniform number falls on.

    Args:
        probabilities: (B, K, V), up to a factor.
        noise: (B, K, 1) in [0, 1).
    """
    bounds = probabilities.double().cumsum(dim=-1)
    return torch.searchsorted(bounds, noise * bounds[..., -1:], right=True)[..., 0]
