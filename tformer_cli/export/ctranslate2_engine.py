"""CTranslate2 as an engine: it translates ids as ours does, by a folder that was exported."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig
from tformer_cli.decoding.engine import longest_first
from tformer_cli.decoding.hypothesis import EMPTY, Hypothesis
from tformer_cli.decoding.request import Request
from tformer_cli.decoding.scoring import Pair
from tformer_cli.errors import CheckpointError, Problem, UsageError
from tformer_cli.export.ctranslate2_spec import library
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import END_ID

# Sentences of a call, between which progress is shown; and of a batch in it.
CALL = 256
BATCH = 64
# Where the end token is certain, what else may come has a probability that no float tells from 0.
TINY = 1e-12
# What of a search CTranslate2 does alike.
SHARED_KEYS = frozenset({"kind", "max_length", "size", "length_penalty", "patience"})


class CTranslate2Engine:
    """Runs an exported model.

    Attributes:
        scorer: says how probable given translations are.
    """

    def __init__(
        self,
        folder: Path,
        tokenizers: Tokenizers,
        *,
        max_length: int | None,
        compute_type: str = "default",
    ) -> None:
        """Load the model.

        Args:
            folder: what was exported.
            tokenizers: of its vocabularies.
            max_length: longest sentence in tokens, or None where any length will do.
            compute_type: what CTranslate2 computes in; by default that of the export.

        Raises:
            UsageError: CTranslate2 is not installed.
            CheckpointError: CTranslate2 cannot load the folder.
        """
        source, target = tokenizers.source, tokenizers.target
        make = library().Translator
        try:
            self.translator = make(
                str(folder), compute_type=compute_type, intra_threads=torch.get_num_threads()
            )
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                str(folder),
                "cannot be loaded by CTranslate2",
                got=str(error),
                remedy="remove it, and export again",
            ) from None
        self.source_tokens = source.tokens(range(source.size))
        self.target_tokens = target.tokens(range(target.size))
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        self.scorer = CTranslate2Scorer(self, set(target.suppressed_ids), max_length)

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[list[Hypothesis]]:
        """Return translations, as `Engine` says.

        Raises:
            UsageError: CTranslate2 does not search so.
        """
        refuse_other_searches(config)
        refuse_demands(requests)
        self._refuse_what_has_no_position(requests, config)
        beam = config if isinstance(config, BeamConfig) else BeamConfig(size=1, length_penalty=0)
        found = [[EMPTY] * nbest for _ in requests]
        order = longest_first(requests)
        on_done(len(requests) - len(order))
        for start in range(0, len(order), CALL):
            numbers = order[start : start + CALL]
            results = self.translator.translate_batch(
                [self.source(requests[number].source) for number in numbers],
                beam_size=beam.size,
                num_hypotheses=nbest,
                length_penalty=beam.length_penalty,
                patience=beam.patience,
                max_decoding_length=config.max_length,
                max_input_length=0,
                max_batch_size=BATCH,
                return_scores=True,
                return_end_token=True,
            )
            for number, result in zip(numbers, results, strict=True):
                found[number] = list(self._hypotheses(result, beam.length_penalty))
            on_done(len(numbers))
        return found

    def _refuse_what_has_no_position(
        self, requests: Sequence[Request], config: DecodingConfig
    ) -> None:
        longest = self.scorer.max_length
        if longest is None:
            return
        source = max((len(request.source) for request in requests), default=0)
        for where, length, remedy in (
            ("decoding.max_length", config.max_length, "lower it"),
            ("a line", source, "lower --max-source-length"),
        ):
            if length > longest:
                raise UsageError(
                    where,
                    f"has more tokens than the exported model has positions ({longest})",
                    got=str(length),
                    remedy=remedy,
                )

    def source(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of source ids but the end token, which CTranslate2 adds itself."""
        return [self.source_tokens[i] for i in ids[:-1]]

    def _hypotheses(self, result: Any, length_penalty: float) -> Iterator[Hypothesis]:
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [self.target_ids[token] for token in tokens]
            finished = ids[-1:] == [END_ID]
            log_prob = score * len(ids) ** length_penalty
            yield Hypothesis(tuple(ids[:-1] if finished else ids), log_prob, score, finished)


class CTranslate2Scorer:
    """Asks an exported model.

    Attributes:
        max_length: longest source or target, or None where any length will do.
    """

    def __init__(
        self, engine: CTranslate2Engine, suppressed_ids: set[int], max_length: int | None
    ) -> None:
        self.engine = engine
        self.impossible = suppressed_ids
        self.max_length = max_length

    def score(
        self,
        pairs: Sequence[Pair],
        *,
        on_done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[float, ...]]:
        """Return log probabilities, as `Scorer` says."""
        results = [
            (-math.inf,) * (len(target) + 1) if source or target else (0.0,)
            for source, target in pairs
        ]
        numbers = [number for number, (source, target) in enumerate(pairs) if source and target]
        sources = [self.engine.source(pairs[number][0]) for number in numbers]
        targets = [[self.engine.target_tokens[i] for i in pairs[number][1]] for number in numbers]
        # CTranslate2 lets the end token come first here, though not in a search.
        ends = self._log_probs(sources, [[] for _ in numbers])
        found = self._log_probs(sources, targets)
        for number, (first, *others), (end,) in zip(numbers, found, ends, strict=True):
            log_probs = (first - math.log1p(-math.exp(min(end, -TINY))), *others)
            written = (*pairs[number][1], END_ID)
            results[number] = tuple(
                -math.inf if token_id in self.impossible else log_prob
                for token_id, log_prob in zip(written, log_probs, strict=True)
            )
        on_done(len(pairs))
        return results

    def _log_probs(self, sources: list[list[str]], targets: list[list[str]]) -> list[list[float]]:
        translator = self.engine.translator
        found = translator.score_batch(sources, targets, max_batch_size=BATCH, max_input_length=0)
        return [one.log_probs for one in found]


def refuse_other_searches(config: DecodingConfig) -> None:
    """Make sure that CTranslate2 has a search, and searches by the same rules.

    Raises:
        UsageError: it does not.
    """
    for part in fields(config):
        value = getattr(config, part.name)
        is_other = part.name not in SHARED_KEYS and value != part.default
        if is_other or value == "sample":
            _refuse(f"decoding.{part.name}", str(value))


def refuse_demands(requests: Sequence[Request]) -> None:
    """Make sure that nothing is asked of a translation but to translate.

    Raises:
        UsageError: something is.
    """
    if any(request.prefix for request in requests):
        _refuse("--prefixes")
    if any(request.banned for request in requests):
        _refuse("--ban")
    if any(request.required for request in requests):
        _refuse("--constraints and --terminology")


def _refuse(where: str, got: str | None = None) -> None:
    raise UsageError(
        where, "has no exact counterpart in CTranslate2", got=got, remedy="leave out --backend"
    )
