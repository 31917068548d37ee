"""Memory that runs out while an engine translates."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from search.test_engine import SEARCHES, asked, native_engine, requests

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.errors import DeviceError, Problem
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.search.workers import WorkersEngine

KINDS = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    MemoryError(),
]
GREEDY, BEAM = SEARCHES
SAMPLE = SampleConfig(max_length=12)


def roomy() -> NativeEngine:
    """An engine with the same weights whenever it is asked for."""
    torch.manual_seed(0)
    return native_engine()


def limited(
    num_beams: int, error: Exception = KINDS[0], *, method: str = "decode_step"
) -> NativeEngine:
    """An engine whose model fails where more rows than these are to go on, or to be read."""
    engine = roomy()
    (model,) = engine.models
    whole = getattr(model, method)

    def failing(ids: torch.Tensor, *rest: object) -> object:
        num_wanted = ids.shape[0] * (ids.shape[1] if method == "decode_step" else 1)
        if num_wanted > num_beams:
            raise error
        return whole(ids, *rest)

    setattr(model, method, failing)
    return engine


def ids(found) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("search", [GREEDY, BEAM, SAMPLE], ids=lambda search: search.kind)
@pytest.mark.parametrize("num_beams", [3, 10])
def test_what_does_not_fit_is_translated_by_fewer_at_a_time(search, num_beams):
    inputs = requests(20)
    expected = roomy().translate(inputs, search)
    engine = limited(num_beams)
    counts: list[int] = []
    warnings: list[Problem] = []
    found = engine.translate(inputs, search, on_done=counts.append, on_warning=warnings.append)
    assert ids(found) == ids(expected)
    assert sum(counts) == len(inputs)
    num_at_once = sum(bool(one.source) for one in inputs)
    assert list(map(str, warnings)) == [
        f"cpu: memory ran out ({num_at_once} sentences at a time); going on with fewer"
    ]


@pytest.mark.parametrize("error", KINDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["decode_step", "encode"])
def test_memory_may_run_out_in_any_way_and_at_any_point(error, method):
    inputs = requests(20)
    engine = limited(4, error, method=method)
    assert ids(engine.translate(inputs, GREEDY)) == ids(roomy().translate(inputs, GREEDY))


def test_fewer_at_a_time_stay_fewer_and_are_told_once():
    engine, inputs = limited(5), requests(20)
    warnings: list[Problem] = []
    engine.translate(inputs, GREEDY, on_warning=warnings.append)
    max_slots = engine.max_slots
    assert 1 <= max_slots <= 5
    engine.translate(inputs, GREEDY, on_warning=warnings.append)
    assert engine.max_slots == max_slots
    # A search of more rows may need still fewer.
    engine.translate(inputs, BeamConfig(beam_size=5, max_length=12), on_warning=warnings.append)
    assert len(warnings) == 1


def test_sentences_that_are_done_are_not_translated_again():
    engine, inputs = roomy(), [one for one in requests(30) if one.source]
    expected = ids(engine.translate(inputs, GREEDY))
    (model,) = engine.models
    step, begun, read = model.decode_step, model.encode, []
    num_steps = 0

    def failing_once(*arguments):
        nonlocal num_steps
        num_steps += 1
        if num_steps == 10:
            raise MemoryError
        return step(*arguments)

    def counting(source, mask):
        read.append(len(source))
        return begun(source, mask)

    model.decode_step, model.encode = failing_once, counting
    counts: list[int] = []
    engine.max_slots = 4
    assert ids(engine.translate(inputs, GREEDY, on_done=counts.append)) == expected
    assert sum(counts) == len(inputs)
    # Beyond each sentence once only those that were at work, at most four.
    assert len(inputs) < sum(read) <= len(inputs) + 4


def test_what_an_attempt_held_is_gone_before_the_next():
    engine, inputs = roomy(), requests(20)
    (model,) = engine.models
    start, step, caches = model.init_cache, model.decode_step, []

    def starting(*arguments):
        gc.disable()
        assert all(cache() is None for cache in caches)
        cache = start(*arguments)
        caches.append(weakref.ref(cache.positions))
        return cache

    def failing(ids, cache):
        if len(ids) > 4:
            raise MemoryError
        return step(ids, cache)

    model.init_cache, model.decode_step = starting, failing
    try:
        engine.translate(inputs, GREEDY)
    finally:
        gc.enable()
    assert len(caches) > 2


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_memory_for_not_even_one_sentence_is_refused(search):
    with pytest.raises(DeviceError) as caught:
        limited(0).translate(requests(20), search)
    assert str(caught.value) == (
        "cpu: memory ran out on a single sentence; "
        "lower `decoding.beam_size`, `count`, decoding.max_length or "
        "`max_source_length`"
    )


def test_other_errors_are_no_shortage():
    with pytest.raises(RuntimeError, match="shapes"):
        limited(3, RuntimeError("shapes cannot be multiplied")).translate(requests(9), GREEDY)


def test_each_process_goes_on_with_fewer_and_one_line_says_so():
    inputs = requests(20)
    warnings: list[Problem] = []
    workers = WorkersEngine(limited(3), 2)
    for _ in range(2):
        found = workers.translate(inputs, BEAM, on_warning=warnings.append)
        assert ids(found) == ids(roomy().translate(inputs, BEAM))
    assert [problem.what for problem in warnings] == ["memory ran out"]


def test_memory_for_not_even_one_sentence_of_a_process_is_refused():
    with pytest.raises(DeviceError) as caught:
        WorkersEngine(limited(0), 2).translate(asked([7, 3]), GreedyConfig(max_length=9))
    assert str(caught.value).startswith(
        "cpu: memory ran out on a single sentence; lower `decoding.beam_size`"
    )


IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import torch
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.search.engine import SpecialTokens
from tformer_cli.search.engine import Request
from tformer_cli.model.build import build_model

torch.set_num_threads(1)
V, search = 20_000, BeamConfig(beam_size=4, max_length=4)
config = EncoderDecoderConfig(
    dim=32, num_heads=2, feedforward_dim=32, num_encoder_layers=1, num_decoder_layers=1,
    tie_embeddings="none",
)
model = build_model(config, source_size=V, target_size=V, seed=1).eval()
engine = NativeEngine(model, SpecialTokens(2, 3, (0, 1, 2)), device=torch.device("cpu"))
requests = [Request([*range(6 + i, 11 + i + i % 9), 3]) for i in range(80)]
engine.translate(requests[:1], search)
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 15 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
found = engine.translate(requests, search, on_warning=print)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
engine.max_slots = 256
expected = engine.translate(requests, search)
assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
def test_memory_that_the_system_refuses_is_a_shortage():
    done = subprocess.run([sys.executable, "-c", IN_LITTLE_MEMORY], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cpu: memory ran out (")
    assert done.stdout.count("\n") == 1
