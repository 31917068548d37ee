import torch
from hypothesis import given
from hypothesis import strategies as st
from search.test_engine import SEARCHES, SPECIAL_TOKENS, requests, small_model

from tformer_cli.inference.two_stage_argmax import TwoStageArgmax
from tformer_cli.search.continuous_batching import decode_all
from tformer_cli.search.engine import build_search, longest_first
from tformer_cli.search.stepper import ModelStepper, first_batch

CPU = torch.device("cpu")
MOST = 50


def test_each_sentence_is_read_once_and_no_more_together_than_there_are_places():
    model, few, counts = small_model(), 12, []
    prefill = model.prefill

    def counted(source, mask):
        counts.append(len(source))
        return prefill(source, mask)

    model.prefill = counted
    asked = requests(100)
    asked = [asked[number] for number in longest_first(asked)]
    search = build_search(SEARCHES[0], SPECIAL_TOKENS, CPU, asked, nbest=1, scored=True)
    stepper = ModelStepper([model], SPECIAL_TOKENS, CPU, torch.float32)
    with torch.inference_mode():
        found = dict(decode_all(stepper, search, asked, lambda longest: few))
    assert len(found) == sum(counts) == len(asked)
    assert max(counts) == few
    assert len(counts) < 2 * len(asked) / few


@given(st.lists(st.integers(1, 2 * MOST), min_size=1, max_size=40))
def test_a_batch_is_as_large_as_it_may_be(lengths):
    sentences = [[7] * length for length in lengths]
    batch = first_batch(iter(sentences), MOST)
    assert batch == sentences[: len(batch)]
    assert len(batch) == 1 or len(batch) * max(map(len, batch)) <= MOST
    more = sentences[: len(batch) + 1]
    assert more == batch or len(more) * max(map(len, more)) > MOST


def test_the_screen_changes_no_translation():
    model, asked = small_model(), [one for one in requests(90) if one.source]
    found = []
    for screen in (None, TwoStageArgmax(model.output)):
        search = build_search(SEARCHES[0], SPECIAL_TOKENS, CPU, asked, nbest=1, scored=False)
        stepper = ModelStepper([model], SPECIAL_TOKENS, CPU, torch.float32, screen)
        with torch.inference_mode():
            results = decode_all(stepper, search, asked, lambda longest: 40)
            found.append({number: best[0].token_ids for number, best in results})
    assert found[0] == found[1]
    assert len(found[0]) == len(asked)
