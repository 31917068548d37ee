"""Several models that translate as one: by the mean of their probabilities."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tformer_cli.search.logits_processors import TokenRoles, forbid
from tformer_cli.search.stepper import Sentence, Stepper
from tformer_cli.search.topk import log_softmax


class EnsembleStepper(Stepper):
    """Steppers over one vocabulary, in step with each other.

    What no translation has is made impossible before the probabilities are normalised, so that
    the mean is over the same tokens for all.
    """

    def __init__(
        self, steppers: Sequence[Stepper], roles: TokenRoles, device: torch.device
    ) -> None:
        """Join steppers.

        Args:
            steppers: each as good as the others.
            roles: end and suppressed ids.
            device: where the logits are.
        """
        self.steppers = steppers
        self.roles = roles
        self.device = device
        self.suppressed = torch.tensor(list(roles.suppressed_ids), device=device)

    def start(self, sentences: Sequence[Sentence], num_rows: int) -> None:
        """Let each read the sentences."""
        for stepper in self.steppers:
            stepper.start(sentences, num_rows)
        self._lengths = torch.zeros(len(sentences), dtype=torch.long, device=self.device)

    def admit(
        self, places: Tensor, sentences: Sequence[Sentence], coming: Iterable[Sentence]
    ) -> None:
        """Let each begin more sentences, as `Stepper` says."""
        coming = list(coming)
        for stepper in self.steppers:
            stepper.admit(places, sentences, coming)
        self._lengths[places] = 0

    def step(self, ids: Tensor) -> Tensor:
        """Return the logarithms of mean probabilities of what follows one more token (B, K)."""
        answers = [stepper.step(ids) for stepper in self.steppers]
        for logits in answers:
            forbid(logits, self.suppressed, self.roles.end_id, self._lengths)
        self._lengths = self._lengths + 1
        return log_mean_probabilities(answers)

    def reorder(self, origins: Tensor) -> None:
        """Let rows go on from others of their place, in all of them."""
        for stepper in self.steppers:
            stepper.reorder(origins)

    def keep(self, places: Tensor) -> None:
        """Drop the other places, in all of them."""
        for stepper in self.steppers:
            stepper.keep(places)
        self._lengths = self._lengths[places]


def joined(steppers: Sequence[Stepper], roles: TokenRoles, device: torch.device) -> Stepper:
    """Return a stepper for all of them; one alone needs no company."""
    return steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers, roles, device)


def log_mean_probabilities(answers: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the probabilities that several models give.

    Args:
        answers: logits (..., V) of each; those of one alone are returned as they are.
    """
    if len(answers) == 1:
        return answers[0]
    log_probs = torch.stack([log_softmax(logits) for logits in answers])
    return log_probs.logsumexp(dim=0) - math.log(len(answers))
