"""The benchmark of alignments: its figures by hand, and ways that link what they say."""

import itertools

import pytest
from alignments import encoded, measure, ways

from tformer_cli.corpus.reader import read_rows
from tformer_cli.search.engine import SpecialTokens
from tformer_cli.search.teacher_forcing import Aligner
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import with_eos


def test_f1_by_hand():
    found = [{"a": {(0, 0), (1, 1)}, "b": {(1, 0)}}, {"a": {(0, 0)}, "b": {(0, 0)}}]
    expected = [{(0, 0), (0, 1), (2, 2)}, {(0, 0)}]
    # Of a, 2 of 3 links and of 4 expected ones are the same; of b, 1 of 2 and of 4.
    assert measure(found, expected) == {"a": pytest.approx(4 / 7), "b": pytest.approx(1 / 3)}


def test_the_way_of_the_product_is_that_of_translate(toy_run):
    trained = load_trained_model(RunDirectory(toy_run))
    trained.model.eval()
    kind = trained.config.model.kind
    special = SpecialTokens(*trained.tokenizers.special_ids(kind))
    device = next(trained.model.parameters()).device
    aligner = Aligner([trained.model], special, device)
    pairs = list(itertools.islice(encoded(trained, 10), 10))
    valid = trained.config.data.held_out[0]
    assert len(pairs) == min(10, len(list(read_rows(valid))))
    differing = 0
    for source, target in pairs:
        links = ways(trained, source, target)
        ((expected,),) = aligner.align([(with_eos(source), [target])])
        assert links["all layers, product of both shares"] == expected
        assert {len(positions) for positions in links.values()} == {len(target)}
        differing += len({tuple(positions) for positions in links.values()}) > 1
    assert differing > 0, "ways that agree on all show little"
