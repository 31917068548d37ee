"""Jobs of many clients are translated together, and each is answered as if it were alone."""

import errno
import gc
import shutil
import threading
import time
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from servers import SECONDS

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.errors import DataError
from tformer_cli.serve.model import ServedModel, find_version, freeze
from tformer_cli.serve.queue import (
    BATCH_CHARACTERS,
    JobOptions,
    TranslationJob,
    TranslationQueue,
    next_batch,
)
from tformer_cli.serve.refusal import Failed, Overloaded
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.segments import Terminology
from tformer_cli.translate.options import SearchOptions
from tformer_cli.translate.preprocess import InputLine
from tformer_cli.translate.translator import Translator

GREEDY = JobOptions(GreedyConfig(max_length=20))
BEAM = JobOptions(BeamConfig(beam_size=2, max_length=20))


def job(*texts: str, options: JobOptions = GREEDY) -> TranslationJob:
    return TranslationJob([InputLine(text) for text in texts], options)


@pytest.fixture
def queue(toy_run, gate):
    """A queue whose thread is at the gate, with one job."""
    queue = TranslationQueue(ServedModel(RunDirectory(toy_run), "best", lambda: gate), 5)
    first = job("a")
    queue.submit(first)
    assert gate.has_begun.wait(SECONDS)
    yield queue
    gate.is_open.set()
    queue.close()
    assert first.future.done()


def texts(job: TranslationJob) -> list[str]:
    return [line.translations[0].text for line in job.future.result(SECONDS)]


def test_jobs_with_equal_options_are_translated_together(queue, gate, translator):
    jobs = [job("ab"), job("cd", "e"), job("fg", options=BEAM), job("", "g")]
    for each in jobs:
        queue.submit(each)
    gate.is_open.set()
    for each in jobs:
        lines = [line.text for line in each.lines]
        assert texts(each) == translator.translate(lines, decoding=each.options.decoding)
    assert gate.windows == [["a"], ["ab", "cd", "e", "", "g"], ["fg"]]
    assert queue.num_lines == 7


def test_an_engine_with_two_callers_has_two_batches_at_a_time(toy_run, gate, translator):
    gate.engine = SimpleNamespace(num_callers=2)
    queue = TranslationQueue(ServedModel(RunDirectory(toy_run), "best", lambda: gate), 5)
    jobs = [job("ab"), job("cd", options=BEAM), job("ef")]
    for each in jobs:
        queue.submit(each)
    # Two have begun, though the gate is shut, and the third waits.
    end = time.monotonic() + SECONDS
    while len(gate.windows) < 2 and time.monotonic() < end:
        time.sleep(0.001)
    assert (len(gate.windows), len(queue)) in ((2, 0), (2, 1))
    gate.is_open.set()
    for each in jobs:
        (line,) = each.lines
        assert texts(each) == translator.translate([line.text], decoding=each.options.decoding)
    queue.close()
    assert queue.num_lines == 3


def test_a_job_that_fails_fails_alone(queue, gate, translator):
    bad = TranslationJob([InputLine("ab", prefix="<s>")], GREEDY)
    good = [job("ab"), job("cd")]
    for each in (good[0], bad, good[1]):
        queue.submit(each)

    def translate_windows(windows, *arguments, **options):
        if any(line.prefix for line in windows[0]):
            raise DataError("the prefix of text:1", "has a token that no translation can contain")
        return translator.translate_windows(windows, *arguments, **options)

    gate.translate_windows = translate_windows
    gate.is_open.set()
    assert [texts(each) for each in good] == [translator.translate([x]) for x in ("ab", "cd")]
    with pytest.raises(DataError, match="no translation can contain"):
        bad.future.result(SECONDS)


def test_a_bug_is_logged_and_the_thread_translates_on(toy_run, gate):
    log = []
    queue = TranslationQueue(
        ServedModel(RunDirectory(toy_run), "best", lambda: gate), 5, log.append
    )
    gate.is_open.set()
    wrong = job("ab", options=JobOptions(decoding=None, count="x"))
    queue.submit(wrong)
    with pytest.raises(Failed, match="has not been translated"):
        wrong.future.result(SECONDS)
    assert "Traceback" in log[0]
    right = job("ab")
    queue.submit(right)
    assert texts(right)
    queue.close()


def test_beyond_its_room_a_queue_refuses_and_loses_nothing(queue, gate, translator):
    jobs = [job(text) for text in ("a", "b", "c", "d", "e")]
    for each in jobs:
        queue.submit(each)
    assert len(queue) == 5
    with pytest.raises(Overloaded, match=r"has too many requests that wait \(5\)"):
        queue.submit(job("f"))
    # A client that is gone makes room.
    assert jobs[2].future.cancel()
    assert len(queue) == 4
    jobs.append(job("g"))
    queue.submit(jobs[-1])
    gate.is_open.set()
    queue.close()
    del jobs[2]
    assert all(each.future.done() for each in jobs)
    assert [texts(each) for each in jobs] == [
        translator.translate([text], decoding=GREEDY.decoding) for text in ("a", "b", "d", "e", "g")
    ]
    assert gate.windows[1:] == [["a", "b", "d", "e", "g"]]
    with pytest.raises(Overloaded, match="is being stopped"):
        queue.submit(job("h"))


def test_a_batch_has_room_for_so_many_characters():
    half = "a" * (BATCH_CHARACTERS // 2)
    jobs = [job(half), job(half, "b"), job(half, options=BEAM), job("c"), job("d")]
    assert next_batch(jobs) == [jobs[0], jobs[3], jobs[4]]
    assert next_batch([job(half * 3)])[0].num_characters > BATCH_CHARACTERS


def test_samples_are_those_of_the_library_whoever_waits_beside(queue, gate, translator):
    sample = SampleConfig(max_length=20, temperature=2.0)
    jobs = [job("ab cd", "e", options=JobOptions(sample)) for _ in range(2)]
    for each in jobs:
        queue.submit(each)
    gate.is_open.set()
    expected = translator.translate(["ab cd", "e"], decoding=sample)
    assert [texts(each) for each in jobs] == [expected, expected]


def test_terms_are_required(queue, gate, translator):
    options = JobOptions(BEAM.decoding, terminology=("ab\tGG",))
    each = job("ab cd", "cd", options=options)
    queue.submit(each)
    gate.is_open.set()
    terms = Terminology(["ab\tGG"], "terms", source_language="source")
    assert texts(each) == translator.translate(
        ["ab cd", "cd"], decoding=BEAM.decoding, terminology=terms
    )
    assert "GG" in texts(each)[0]


# ----------------------------------------------------------------------------------------- reload


@pytest.fixture
def run(toy_run, tmp_path) -> RunDirectory:
    return RunDirectory(shutil.copytree(toy_run, tmp_path / "run"))


def wait_for_loader(model: ServedModel) -> None:
    model._loader.join(SECONDS)
    assert not model._loader.is_alive()


def test_a_newer_checkpoint_takes_over(run):
    best = run.pointed("best")
    older = next(path for path in run.step_checkpoints() if path != best)
    run.point("best", older)
    log = []
    model = ServedModel(
        run, "best", lambda: Translator.load(run.path, backend="native"), log.append
    )
    before = model.translator
    model.reload()
    assert model.translator is before
    run.point("best", best)
    model.reload()
    wait_for_loader(model)
    assert model.translator is not before
    assert model.version.folder == best
    assert log == [f"{run.path}: loaded {best.name}"]
    expected = Translator.load(run.path, backend="native").translate(["ab cd"])
    assert model.translator.translate(["ab cd"]) == expected
    model.reload()
    assert len(log) == 1


def test_a_checkpoint_that_fails_to_load_is_logged_once(run):
    log = []
    model = ServedModel(
        run, "best", lambda: Translator.load(run.path, backend="native"), log.append
    )
    before = model.translator
    broken = shutil.copytree(run.pointed("best"), run.checkpoint(999))
    (broken / "model.safetensors").write_bytes(b"broken")
    run.point("best", broken)
    model.reload()
    wait_for_loader(model)
    for _ in range(3):
        model.reload()
    wait_for_loader(model)
    assert model.translator is before
    (line,) = log
    assert line.startswith(f"{run.path}: keeps its checkpoint, as a newer one fails to load: ")


def test_the_old_one_translates_until_the_new_one_is_loaded(run, translator):
    may_load = threading.Event()
    calls = []

    def load() -> Translator:
        calls.append(1)
        assert len(calls) == 1 or may_load.wait(SECONDS)
        return translator

    queue = TranslationQueue(ServedModel(run, "best", load), 5)
    best = run.pointed("best")
    run.point("best", shutil.copytree(best, run.checkpoint(999)))
    first = job("ab")
    queue.submit(first)
    assert texts(first) == translator.translate(["ab"], decoding=GREEDY.decoding)
    assert queue.model.version.folder == best
    may_load.set()
    wait_for_loader(queue.model)
    assert queue.model.version.folder == run.checkpoint(999)
    queue.close()


def test_a_pointer_that_cannot_be_read_stops_nothing(run, translator, monkeypatch):
    queue = TranslationQueue(ServedModel(run, "best", lambda: translator), 5)
    best = run.pointed("best")
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "pointed", Mock(side_effect=OSError(errno.EMFILE, "")))
        first = job("ab")
        queue.submit(first)
        assert texts(first) == translator.translate(["ab"], decoding=GREEDY.decoding)
        assert find_version(run, "best") is None
    # The thread still looks for a newer checkpoint.
    run.point("best", shutil.copytree(best, run.checkpoint(999)))
    second = job("cd")
    queue.submit(second)
    assert texts(second) == translator.translate(["cd"], decoding=GREEDY.decoding)
    wait_for_loader(queue.model)
    assert queue.model.version.folder == run.checkpoint(999)
    queue.close()


def test_a_run_that_is_calibrated_now_is_loaded_again(run):
    loaded = []
    model = ServedModel(run, "best", lambda: loaded.append(run.confidence_file.exists()))
    model.reload()
    assert loaded == [False]
    run.confidence_file.write_text("{}", encoding="utf-8")
    model.reload()
    wait_for_loader(model)
    model.reload()
    assert loaded == [False, True]


def test_a_search_is_checked_once_for_each_checkpoint(run):
    sizes = iter([2, 7])

    def load() -> SimpleNamespace:
        decoding = ["decoding.kind=beam", f"decoding.beam_size={next(sizes)}"]
        return SimpleNamespace(config=load_config(run.config_file, decoding))

    model = ServedModel(run, "best", load)
    longer = SearchOptions(settings=("decoding.max_length=99",))
    search = model.resolve_search(longer, None)
    assert (search.beam_size, search.max_length) == (2, 99)
    assert model.resolve_search(SearchOptions(settings=longer.settings), None) is search
    run.point("best", shutil.copytree(run.pointed("best"), run.checkpoint(999)))
    model.reload()
    wait_for_loader(model)
    search = model.resolve_search(longer, None)
    assert (search.beam_size, search.max_length) == (7, 99)


def test_a_translator_that_is_replaced_while_it_is_asked_is_kept_no_longer(run, translator):
    class Replaced:
        def into(self, target: str, source: str) -> str:
            model._replace(model.version)  # as the thread that loads may do at any time
            return target

    model = ServedModel(run, "best", Replaced)
    model.directions = (("source", "target"), ("target", "source"))
    former = weakref.ref(model.translator)
    assert model.into(("target", "source")) == "source"
    assert former() is None


def test_a_frozen_object_is_not_visited_by_the_garbage_collector():
    old = [[]]
    freeze()
    new = [[]]
    try:
        visited = {id(each) for each in gc.get_objects()}
    finally:
        gc.unfreeze()
    assert id(new) in visited
    assert id(old) not in visited


@pytest.mark.parametrize("checkpoint", ["best", "last", "999", "step-000999"])
def test_versions_are_those_of_the_checkpoint_that_is_named(run, checkpoint):
    before = find_version(run, checkpoint)
    new = shutil.copytree(run.pointed("best"), run.checkpoint(999))
    if checkpoint in ("best", "last"):
        assert find_version(run, checkpoint) == before
        run.point(checkpoint, new)
    else:
        assert before is None
    found = find_version(run, checkpoint)
    assert (found.folder, found.confidence) == (new, None)
    run.confidence_file.write_text("{}", encoding="utf-8")
    calibrated = find_version(run, checkpoint)
    assert calibrated == found._replace(confidence=calibrated.confidence) != found
    assert find_version(run, checkpoint) == calibrated
    time.sleep(0.01)
    (new / "model.safetensors").write_bytes(b"")
    shutil.rmtree(new)
    assert find_version(run, checkpoint) is None
