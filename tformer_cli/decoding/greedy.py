"""Greedy search: the most probable token at each step."""

from collections.abc import Sequence

import torch

from tformer_cli.config.schema import GreedyConfig
from tformer_cli.decoding.hypothesis import Hypothesis
from tformer_cli.decoding.processors import TokenRoles, log_probabilities
from tformer_cli.decoding.stepper import Stepper

# Dropping finished rows copies the cache of the others, so it waits until it pays.
FINISHED_SHARE = 0.25


def greedy_search(
    stepper: Stepper,
    sentences: Sequence[Sequence[int]],
    config: GreedyConfig,
    roles: TokenRoles,
    device: torch.device,
) -> list[Hypothesis]:
    """Return the greedy translation of each sentence; its score is its log probability.

    Args:
        stepper: says what may come next.
        sentences: source token ids.
        config: the length limit.
        roles: start, end and suppressed ids.
        device: where the stepper's logits are.
    """
    hypotheses: list[Hypothesis | None] = [None] * len(sentences)
    stepper.start(sentences, 1)
    alive = torch.arange(len(sentences), device=device)  # sentence of each row
    finished = torch.zeros(len(sentences), dtype=torch.bool, device=device)
    log_probs = torch.zeros(len(sentences), device=device)
    written = torch.full((len(sentences), 1), roles.start_id, device=device)
    for length in range(1, config.max_length + 1):
        logits = stepper.step(written[:, -1])
        step_log_probs, best = log_probabilities(logits, roles, is_first=length == 1).max(dim=-1)
        log_probs = torch.where(finished, log_probs, log_probs + step_log_probs)
        written = torch.cat((written, best[:, None]), dim=1)
        finished = finished | (best == roles.end_id)
        is_last = length == config.max_length or bool(finished.all())
        if not is_last and float(finished.float().mean()) < FINISHED_SHARE:
            continue
        leaving = torch.ones_like(finished) if is_last else finished
        for sentence, row, log_prob in zip(
            alive[leaving].tolist(),
            written[leaving].tolist(),
            log_probs[leaving].tolist(),
            strict=True,
        ):
            hypotheses[sentence] = _hypothesis(row, log_prob, roles)
        if is_last:
            break
        rows = (~finished).nonzero()[:, 0]
        stepper.select(rows, rows)
        alive, finished = alive[rows], finished[rows]
        written, log_probs = written[rows], log_probs[rows]
    return [hypothesis for hypothesis in hypotheses if hypothesis is not None]


def _hypothesis(row: list[int], log_prob: float, roles: TokenRoles) -> Hypothesis:
    """Cut a written row at its end token and take the start token off."""
    finished = roles.end_id in row
    end = row.index(roles.end_id) if finished else len(row)
    return Hypothesis(tuple(row[1:end]), log_prob, log_prob, finished)
