"""Files, overrides, paths, and the full dump that reads back."""

import dataclasses
import itertools
import math
import os
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tformer_cli.config.load import (
    as_plain,
    changed_decoding,
    check_data_files,
    dump_config,
    load_config,
    load_with_texts,
)
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import PARALLEL_FILTERS
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.config.schema.fields import MAX_COUNT, Bounds, check
from tformer_cli.config.schema.model import (
    AlibiPositions,
    EncoderDecoderConfig,
    MaskedEncoderConfig,
)
from tformer_cli.config.schema.text import (
    ParallelText,
    PlainText,
    PlainTrainingText,
    Text,
    TrainingText,
)
from tformer_cli.config.schema.tokenizer import (
    CharConfig,
    SubwordConfig,
    TokenizerConfig,
)
from tformer_cli.config.schema.training import (
    AdamConfig,
    BpeDropoutConfig,
    RDropConfig,
    SubwordSamplingConfig,
    TagsFirstConfig,
    TrainingConfig,
    UnigramSamplingConfig,
)
from tformer_cli.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
DATA = """\
data:
  train: [{source: a, target: b}]
  valid: {source: ../c, target: d}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(DATA, encoding="utf-8")
    return path


def complaints(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_config(path, overrides)
    return str(raised.value).replace(str(path), "x.yaml").split("\n")


def test_a_pipe_or_a_device_is_no_config_and_no_training_text(file: Path) -> None:
    """Whoever reads it waits for ever."""
    pipe = file.with_name("pipe")
    os.mkfifo(pipe)
    for endless in (pipe, Path("/dev/zero")):
        assert complaints(endless) == ["x.yaml: must be a regular file; write it to a file first"]
    config = load_config(file, [f"data.train.0.source={pipe}"])
    with pytest.raises(ConfigError) as caught:
        check_data_files(config.data)
    assert f"data.train.0.source: must be a regular file ({pipe}); " in str(caught.value)


def test_paths_are_relative_to_the_folder_of_the_file(file: Path) -> None:
    config = load_config(file)
    assert config.data.root is None
    assert config.data.train[0].source == file.parent / "a"
    assert config.data.valid.source == file.parent.parent / "c"


def test_paths_are_relative_to_root_and_root_to_the_file(file: Path) -> None:
    file.write_text(DATA + "  root: texts/en\n  test: {x: {source: /abs, target: ~/home}}\n")
    data = load_config(file).data
    assert data.root == file.parent / "texts" / "en"
    assert data.train[0].target == file.parent / "texts" / "en" / "b"
    assert data.valid.source == file.parent / "texts" / "c"
    assert data.test["x"].source == Path("/abs")
    assert data.test["x"].target == Path.home() / "home"


def test_paths_of_overrides_are_relative_to_the_current_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    data = load_config(file, ["data.root=texts", "data.train.0.source=../z"]).data
    assert data.root == here / "texts"
    assert data.train[0].source == tmp_path / "z"
    assert data.train[0].target == here / "texts" / "b"


def test_a_root_for_absolute_paths_is_refused(file: Path, tmp_path: Path) -> None:
    """The config of a run has such paths, and would train on the former text in silence."""
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_config(load_config(file, [f"data.root={tmp_path}/old"])))
    assert load_config(resolved).data.root == tmp_path / "old"
    with pytest.raises(ConfigError) as raised:
        load_config(resolved, ["seed=2", f"data.root={tmp_path}/new"])
    assert str(raised.value) == (
        "`settings` data.root: has no effect, since all paths of texts are absolute "
        f"({tmp_path}/new); change data.train and data.valid"
    )


def test_a_missing_path_of_an_override_names_the_folder_that_counts(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_with_texts(file, ["data.root=texts", "data.train.0.source=z"])
    (problem,) = [each for each in raised.value.problems if each.got == str(tmp_path / "z")]
    assert problem.where == "`settings` data.train.0.source"
    assert problem.remedy == (
        "correct the path, which starts from the current folder, whatever data.root is"
    )


def test_links_in_paths_are_kept(file: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    data = load_config(file, [f"data.root={tmp_path}/link"]).data
    assert data.train[0].source == tmp_path / "link" / "a"


def test_override_reaches_every_kind_of_key(file: Path) -> None:
    config = load_config(
        file,
        [
            "seed=7",
            "training.optimizer.learning_rate=1e-4",
            "training.clip_norm=",
            "data.source_language=no",
            "data.train.0.weight=2",
            "data.test.news.source=/s",
            "data.test.news.target=/t",
            "tokenizer={kind: char, min_frequency: 3}",
            "training.schedule.kind=step",
            "training.schedule.step_size=5",
            "training.optimizer.betas=[0.5, 0.75]",
            "training.optimizer.betas.1=0.8",
        ],
    )
    assert config.seed == 7
    assert config.training.optimizer.learning_rate == 1e-4
    assert config.training.clip_norm is None
    assert config.data.source_language == "no"
    assert config.data.train[0].weight == 2.0
    assert config.data.train[0].source == file.parent / "a"
    assert config.data.test["news"].target == Path("/t")
    assert config.tokenizer == CharConfig(min_frequency=3)
    assert config.training.schedule.kind == "step"
    assert config.training.schedule.step_size == 5
    assert config.training.optimizer.betas == (0.5, 0.8)


def test_override_reaches_a_test_set_whose_name_has_dots(file: Path) -> None:
    names = ("wmt", "wmt.20", "wmt.20.news", "20")
    sets = "".join(f"    {name}: {{source: /a, target: /b}}\n" for name in names)
    file.write_text(f"{DATA}  test:\n    ? [wmt]\n    : x\n{sets}")
    # What is no name of a test set is refused as before.
    assert len(complaints(file, "data.test.wmt.20.source=/c")) == 1
    file.write_text(f"{DATA}  test:\n{sets}")
    for name in names:
        test = load_config(file, [f"data.test.{name}.source=/c"]).data.test
        assert {each: str(text.source) for each, text in test.items()} == {
            each: "/c" if each == name else "/a" for each in names
        }
    whole = load_config(file, ["data.test.wmt.20={source: /d, target: /e}"]).data.test
    assert [*whole] == [*names]
    assert whole["wmt.20"].target == Path("/e")


@pytest.mark.parametrize("name", ["wmt.2016", "wmt.20.news", "old.2016"])
def test_a_new_name_with_dots_is_told_how_to_be_written(file: Path, name: str) -> None:
    file.write_text(f"{DATA}  test: {{old: {{source: /a, target: /b}}}}\n")
    remedy = "write data.test={NAME: ...} if the name has dots"
    for override in (f"data.test.{name}.source=/c", f"data.test.{name}={{source: /c, target: /d}}"):
        (complaint,) = complaints(file, override)
        assert complaint.endswith(f"; {remedy}")
    followed = f"data.test={{{name}: {{source: /c, target: /d}}}}"
    assert [*load_config(file, [followed]).data.test] == [name]
    # A key that is misspelled has another remedy, or none.
    for override in ("data.test.new.sorce=/c", "data.test.old.sorce=/c"):
        assert remedy not in "".join(complaints(file, override))


def test_override_leaves_what_an_alias_shares(file: Path) -> None:
    file.write_text("data: {train: [&t {source: /a, target: /b}], valid: *t, test: {x: *t}}\n")
    data = load_config(file, ["data.valid.source=/c"]).data
    assert data.valid.source == Path("/c")
    assert data.train[0].source == data.test["x"].source == Path("/a")


def test_override_keeps_the_order_of_the_file(file: Path) -> None:
    file.write_text(f"{DATA}  test: {{m: {{source: a, target: b}}, c: {{source: a, target: b}}}}\n")
    assert list(load_config(file, ["data.test.m.source=/z"]).data.test) == ["m", "c"]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("seed", "seed: must be KEY=VALUE (seed)"),
        ("=5", ": must be KEY=VALUE (=5)"),
        ("training..x=5", "training..x: must be KEY=VALUE (training..x=5)"),
        ("seed=x", "seed: must be a whole number (x)"),
        ("seed=-1", "seed: must be at least 0 (-1)"),
        ("seed=# 5", "seed: has no value (# 5)"),
        ("seed=[1", "seed: has a [ that is not closed; add ]"),
        ("decoding.beam=5", "decoding.beam: no such key; did you mean beam_size?"),
        ("seed.x=1", "seed.x: seed: must be a whole number (a mapping)"),
        ("training.max_step=5", "training.max_step: no such key; did you mean max_steps?"),
        ("data.train.1.source=x",
         "data.train.1.source: 1 is no item of a list of 1; they are numbered from 0"),
        ("data.train.one.source=x",
         "data.train.one.source: one is no item of a list of 1; they are numbered from 0"),
        (f"data.train.{'9' * 5000}.source=x",
         f"data.train.{'9' * 5000}.source: {'9' * 5000} is no item of a list of 1; "
         "they are numbered from 0"),
        ("tokenizer={kind: char, algorithm: bpe}",
         "tokenizer: tokenizer.algorithm: belongs to kind: subword; this one is kind: char"),
        ("model.num_heads=3", "model.num_heads: must divide dim 256 (3)"),
        ("model.dim=258",
         "model.dim: model.num_heads: must divide dim 258 (4)"),
        ("data.valid={source: x}", "data.valid: data.valid.target: is required"),
    ],
)  # fmt: skip
def test_override_that_is_wrong_is_named(file: Path, override: str, complaint: str) -> None:
    assert complaints(file, override) == [f"`settings` {complaint}"]


def test_override_of_kind_drops_the_keys_of_other_kinds_in_the_file(file: Path) -> None:
    file.write_text(
        f"{DATA}tokenizer: {{vocab_size: 500, nfkc: both}}\n"
        "training: {optimizer: {kind: muon, momentum: 0.9, epsilon: 1e-6}}\n"
        "model: {num_decoder_layers: 2, positions: {kind: rotary, base: 5}}\n"
    )
    kinds = ("tokenizer.kind=char", "training.optimizer.kind=adam", "model.positions.kind=alibi")
    for overrides in itertools.permutations(kinds):
        config = load_config(file, overrides)
        assert config.tokenizer == CharConfig(nfkc="both")
        assert config.training.optimizer == AdamConfig(epsilon=1e-6)
        assert config.model == EncoderDecoderConfig(
            num_decoder_layers=2, positions=AlibiPositions()
        )


def test_override_of_kind_drops_no_key_of_another_override(file: Path) -> None:
    overrides = ["tokenizer.vocab_size=500", "tokenizer.kind=char"]
    for both in (overrides, overrides[::-1]):
        assert complaints(file, *both) == [
            "`settings` tokenizer.vocab_size: belongs to kind: subword; this one is kind: char"
        ]
    scaled = ["model.positions.scaling.factor=4", "model.positions.kind=alibi"]
    file.write_text(DATA + "model: {positions: {kind: rotary, scaling: {kind: ntk, factor: 2}}}\n")
    assert len(complaints(file, *scaled)) == 1


def test_override_of_kind_keeps_misspelt_keys_to_be_refused(file: Path) -> None:
    file.write_text(DATA + "tokenizer: {vocab_sice: 500}\n")
    assert complaints(file, "tokenizer.kind=char")[0].startswith(
        "x.yaml:4: tokenizer.vocab_sice: no such key; "
    )


def test_a_search_of_another_kind_keeps_what_both_have(file: Path) -> None:
    config = load_config(
        file, ["decoding.beam_size=4", "decoding.patience=2", "decoding.min_length=3"]
    )
    assert changed_decoding(config, ["decoding.kind=sample"]) == SampleConfig(min_length=3)
    greedy = changed_decoding(config, ["decoding.kind=greedy", "decoding.max_length=9"])
    assert greedy == GreedyConfig(min_length=3, max_length=9)


def test_problems_of_file_and_overrides_come_together(file: Path) -> None:
    file.write_text(DATA + "seed: x\n")
    assert complaints(file, "model.dim=y", "z") == [
        "x.yaml:4: seed: must be a whole number (x)",
        "`settings` model.dim: must be a whole number (y)",
        "`settings` z: must be KEY=VALUE (z)",
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "x.yaml: is empty; create a config with `tformer config new SOURCE TARGET`"),
        (
            b"# only a comment\n",
            "x.yaml: is empty; create a config with `tformer config new SOURCE TARGET`",
        ),
        (b"- a\n- b\n", "x.yaml: must be a mapping of keys to values (a list)"),
        (
            b"just text\n",
            "x.yaml: is plain text, not a config; "
            "create a config with `tformer config new SOURCE TARGET`",
        ),
        (b"seed: 1\n# M\xfcller\n", "x.yaml:2: is not UTF-8 (byte 0xFC)"),
    ],
)
def test_file_without_a_configuration_is_refused(
    file: Path, content: bytes, complaint: str
) -> None:
    file.write_bytes(content)
    assert complaints(file) == [complaint]


def test_file_larger_than_any_config_is_refused(file: Path) -> None:
    with file.open("a", encoding="utf-8") as config:
        config.write("#" * (1 << 20))
    assert complaints(file) == ["x.yaml: must be at most 1 MiB large"]
    text = file.rename(file.with_suffix(".txt"))
    assert complaints(text) == [
        "x.yaml: must be at most 1 MiB large; create a config with "
        "`tformer config new SOURCE TARGET`"
    ]


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert complaints(tmp_path / "none.yaml") == [
        "x.yaml: no such file; name a config, or create one with `tformer config new`"
    ]
    assert complaints(tmp_path) == ["x.yaml: is a folder; name a YAML file in it"]
    (tmp_path / "config.yaml").touch()
    assert complaints(tmp_path) == ["x.yaml: is a folder; name x.yaml/config.yaml"]
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    assert complaints(loop) == ["x.yaml: cannot be read (Too many levels of symbolic links)"]


def test_plain_text_is_no_config(tmp_path: Path) -> None:
    text = tmp_path / "train.en"
    text.write_text("Our sad sister: she sings.\nYes: and: no.\n", encoding="utf-8")
    assert complaints(text) == [
        "x.yaml: is plain text, not a config; create a config with "
        "`tformer config new SOURCE TARGET`"
    ]
    text.write_text("seed: 1\nmodel\n  dim: 5\n", encoding="utf-8")
    assert complaints(text) == ["x.yaml:2: has no colon after model; write key: value"]


def test_check_data_files_lists_all_that_are_missing(file: Path) -> None:
    for name in ("a", "d"):
        (file.parent / name).touch()
    with pytest.raises(ConfigError) as raised:
        check_data_files(load_config(file, ["data.test.x={source: /, target: /no/t}"]).data)
    remedy = "correct the path, or set data.root"
    assert str(raised.value).split("\n") == [
        f"data.train.0.target: no such file ({file.parent}/b); {remedy}",
        f"data.valid.source: no such file ({file.parent.parent}/c); {remedy}",
        f"data.test.x.source: is a folder (/); {remedy}",
        f"data.test.x.target: no such file (/no/t); {remedy}",
    ]


def test_missing_data_files_are_named_with_their_lines(file: Path) -> None:
    overrides = ["data.test.x={source: /s, target: /t}"]
    with pytest.raises(ConfigError) as raised:
        load_with_texts(file, overrides)
    located = [str(problem).split(" (")[0] for problem in raised.value.problems]
    assert located == [
        f"{file}:2: data.train.0.source: no such file",
        f"{file}:2: data.train.0.target: no such file",
        f"{file}:3: data.valid.source: no such file",
        f"{file}:3: data.valid.target: no such file",
        "`settings` data.test.x: data.test.x.source: no such file",
        "`settings` data.test.x: data.test.x.target: no such file",
    ]


def test_missing_data_of_a_shipped_config_can_be_fetched(tmp_path: Path) -> None:
    for folder in ("configs", "scripts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts" / "get_multi30k.py").touch()
    shipped = tmp_path / "configs" / "multi30k.yaml"
    shipped.write_bytes((ROOT / "configs" / "multi30k.yaml").read_bytes())
    with pytest.raises(ConfigError) as raised:
        check_data_files(load_config(shipped).data)
    remedy = "run python scripts/get_multi30k.py, correct the path, or set data.root"
    assert {problem.remedy for problem in raised.value.problems} == {remedy}


def test_search_setting_without_its_section(file: Path) -> None:
    config = load_config(file)
    remedies = {
        "beam=5": "write decoding.beam_size=5",
        "size=5": "write decoding.beam_size=5",
        "length_penalty=1": "write decoding.length_penalty=1",
        "seed=1": None,
    }
    for override, remedy in remedies.items():
        with pytest.raises(ConfigError) as raised:
            changed_decoding(config, [override])
        assert raised.value.problems[0].remedy == remedy


@pytest.mark.parametrize("line_end", ["\x85", "\u2028", "\u2029"])
def test_dump_keeps_the_line_ends_of_unicode(file: Path, line_end: str) -> None:
    config = load_config(file)
    data = dataclasses.replace(config.data, source_language=f"a{line_end}b")
    config = dataclasses.replace(config, data=data)
    file.write_text(dump_config(config), encoding="utf-8")
    assert load_config(file).data.source_language == f"a{line_end}b"


def test_dump_of_the_defaults_is_the_golden_one(file: Path) -> None:
    file.write_text(DATA.replace("../c", "c").replace("data:", "data:\n  root: /texts"))
    golden = (GOLDEN / "default_config.yaml").read_text(encoding="utf-8")
    assert dump_config(load_config(file)) == golden


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_config_loads_and_its_dump_reads_back(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    dump = tmp_path / "config.yaml"
    dump.write_text(dump_config(config), encoding="utf-8")
    assert load_config(dump) == config


# Values that keep the rules between fields, whatever the others are.
_RULED = {
    "dim": st.sampled_from([8, 64]),
    "num_heads": st.sampled_from([1, 2, 4]),
    "num_kv_heads": st.sampled_from([None, 1]),
    "latent": st.none(),
    "dropout": st.floats(0.1, 0.9),
    "keep_checkpoints": st.integers(9, MAX_COUNT),
    "average_checkpoints": st.integers(2, 9),
    "ema_decay": st.none(),
    "num_buckets": st.sampled_from([4, 32]),
    "max_distance": st.integers(17, 999),
    "beta_fast": st.just(32.0),
    "beta_slow": st.just(1.0),
    "shared": st.just(True),
    "tie_embeddings": st.sampled_from(["none", "output"]),
    "max_steps": st.integers(1000, MAX_COUNT),
    "freeze": st.sampled_from([(), ("embeddings",)]),
    "bidirectional_steps": st.one_of(st.none(), st.integers(1, 999)),
    "swap": st.integers(1, MAX_COUNT),
    "warmup_steps": st.integers(1, 1000),
    "validate_every": st.integers(1, 1000),
    "max_length": st.integers(1200, 1300),
    "batch_tokens": st.integers(701, 10**6),
    "vocab_size": st.integers(273, 10**6),
    "source_field": st.just("1"),
    "target_field": st.just("a.b"),
    "language_marks": st.just("tags"),
    "prefixes": st.none(),
    "head_width": st.none(),
    "attention_scale": st.none(),
    # Without them, loading writes those of the data.
    "languages": st.tuples(st.text(max_size=3), st.text(max_size=3)),
}


def values_of(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a field of the schema, by its annotation and its name."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: values_of(part, name) for name, part in hints.items()})
    if name in _RULED:
        return _RULED[name]
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(member) for member in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is Annotated:
        bounds = [extra for extra in arguments[1:] if isinstance(extra, Bounds)]
        return _numbers(arguments[0], bounds[0]) if bounds else values_of(arguments[0])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), min_size=1, max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        letters = st.characters(exclude_characters="/.", exclude_categories=["C", "Z"])
        names = st.text(letters, min_size=1, max_size=9).filter(lambda text: text != "valid")
        return st.dictionaries(names, values_of(arguments[1]), max_size=2)
    # Without wildcards, which loading replaces by the files that they match.
    letters = st.characters(exclude_characters="/\0*?", exclude_categories=["Cs"])
    names = st.text(letters, max_size=9)
    return {
        types.NoneType: st.none(),
        bool: st.booleans(),
        str: st.text(max_size=9),
        Path: names.filter(lambda text: text not in (".", "..")).map(lambda text: Path("/", text)),
    }[hint]


def _numbers(kind: type, bounds: Bounds) -> st.SearchStrategy[Any]:
    low = bounds.ge if bounds.gt is None else bounds.gt
    high = bounds.le if bounds.lt is None else bounds.lt
    if kind is int:
        return st.integers(int(low or 0), int(MAX_COUNT if high is None else high))
    return st.floats(
        low,
        math.inf if high is None else high,
        exclude_min=bounds.gt is not None,
        exclude_max=bounds.lt is not None,
        allow_infinity=False,
    )


def _coherent(decoding: DecodingConfig) -> DecodingConfig:
    if isinstance(decoding, BeamConfig):
        decoding = dataclasses.replace(
            decoding, beam_size=(decoding.beam_size + 1) // 2 * 2, num_beam_groups=2
        )
    ratios = [decoding.min_length_ratio, decoding.max_length_ratio]
    if None not in ratios:
        ratios.sort()
    return dataclasses.replace(
        decoding,
        max_length=600,
        min_length=min(decoding.min_length, 599),
        min_length_ratio=ratios[0],
        max_length_ratio=ratios[1],
    )


def _sampling(tokenizer: TokenizerConfig) -> SubwordSamplingConfig | None:
    if not isinstance(tokenizer, SubwordConfig):
        return None
    return BpeDropoutConfig() if tokenizer.algorithm == "bpe" else UnigramSamplingConfig()


def _alone(text: Text) -> dict[str, Path]:
    return {"text": next(iter(text.files.values()))}


def _translated(text: Text) -> dict[str, Path]:
    first, *_, last = [*text.files.values()] * 2
    return {"source": first, "target": last}


def _masking(config: Config) -> Config:
    """Give a masked encoder texts alone, and nothing that only translations are made with."""
    data = dataclasses.replace(
        config.data,
        train=tuple(
            PlainTrainingText(**_alone(text), weight=text.weight) for text in config.data.train
        ),
        valid=PlainText(**_alone(next(iter(config.data.texts().values())))),
        test={},
        sampling=None,
        filters=dataclasses.replace(
            config.data.filters, **dict.fromkeys(PARALLEL_FILTERS), max_length=599
        ),
    )
    training = dataclasses.replace(
        config.training,
        selection_metric="loss",
        validation_decoding=GreedyConfig(),
        sample_translations=TrainingConfig().sample_translations,
        consistency=RDropConfig(),
        bidirectional_steps=None,
        tags_first=None,
        subword_sampling=None,
        source_noise=None,
    )
    return Config(
        seed=config.seed,
        data=data,
        tokenizer=config.tokenizer,
        model=config.model,
        training=training,
    )


def _translating(config: Config) -> Config:
    """Give a model that translates texts with their translations, and searches that can run.

    Each training text has a target language of its own.
    """
    data, training, scores = config.data, config.training, config.evaluation
    is_single = len(data.train) == 1
    valid = data.valid if isinstance(data.valid, tuple) else (data.valid,)
    valid = tuple(
        ParallelText(**_translated(text), source_language=f"{i}", target_language="0")
        for i, text in enumerate(valid)
    )
    data = dataclasses.replace(
        data,
        train=tuple(
            TrainingText(**_translated(text), weight=text.weight, target_language=f"{i}")
            for i, text in enumerate(data.train)
        ),
        valid=valid if isinstance(data.valid, tuple) else valid[0],
        test=dict.fromkeys(data.test, valid[0]),
        sampling=None if is_single else data.sampling,
        filters=dataclasses.replace(data.filters, max_length=599),
    )
    return dataclasses.replace(
        config,
        data=data,
        training=dataclasses.replace(
            training,
            validation_decoding=_coherent(training.validation_decoding),
            subword_sampling=_sampling(config.tokenizer),
            bidirectional_steps=training.bidirectional_steps if is_single else None,
            tags_first=_first(training.tags_first, data.tags),
        ),
        decoding=_coherent(config.decoding),
        evaluation=dataclasses.replace(
            scores, bleu=dataclasses.replace(scores.bleu, lowercase=True)
        ),
    )


def _first(config: TagsFirstConfig | None, tags: tuple[str, ...]) -> TagsFirstConfig | None:
    return dataclasses.replace(config, tags=tags[:1]) if config and tags else None


def _suited(config: Config) -> Config:
    """Keep the rules that tie keys together."""
    if config.tokenizer.kind == "m2m":
        data = dataclasses.replace(config.data, language_marks="tokens")
        training = dataclasses.replace(config.training, bidirectional_steps=None)
        config = dataclasses.replace(config, data=data, training=training)
    is_masked = isinstance(config.model, MaskedEncoderConfig)
    return _masking(config) if is_masked else _translating(config)


@settings(max_examples=20)
@given(values_of(Config).map(_suited))
def test_dump_reads_back_to_an_equal_config(
    tmp_path_factory: pytest.TempPathFactory, config: Config
) -> None:
    assert not list(check(config))
    file = tmp_path_factory.getbasetemp() / "dump.yaml"
    file.write_text(dump_config(config), encoding="utf-8", newline="")
    assert load_config(file) == config


def test_as_plain_holds_only_what_json_knows(file: Path) -> None:
    plain = as_plain(load_config(file))
    assert plain["data"]["train"] == [
        {
            "source": str(file.parent / "a"),
            "target": str(file.parent / "b"),
            "weight": 1.0,
            "tags": [],
        }
    ]
    assert plain["data"]["root"] is None
    assert plain["training"]["optimizer"]["betas"] == [0.9, 0.98]


def test_all_that_is_wrong_with_changes_of_a_search_is_said_at_once(file: Path) -> None:
    config = load_config(file)
    with pytest.raises(ConfigError) as caught:
        changed_decoding(
            config, ["decoding.beam_sizze=3", "training.max_steps=1", "decoding.beam_size=[1"]
        )
    assert [problem.where for problem in caught.value.problems] == [
        "`settings` decoding.beam_sizze",
        "`settings` training.max_steps",
        "`settings` decoding.beam_size",
    ]
