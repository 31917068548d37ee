"""What the parser makes of YAML text, and the exact words of all that it refuses."""

import os
from pathlib import Path

import pytest

from tformer_cli.config.parse import parse_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.model import LearnedPositions
from tformer_cli.config.schema.text import PlainText, PlainTrainingText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.config.schema.training import AdamConfig, CosineSchedule, StepSchedule
from tformer_cli.config.yaml_tree import compose
from tformer_cli.errors import ConfigError

DATA = """\
data:
  train: [{source: a, target: b}]
  valid: {source: c, target: d}
"""


def parsed(text: str) -> Config:
    root = compose(text, "x.yaml")
    assert root is not None
    return parse_config(root, "x.yaml")[0]


def complaints(text: str) -> list[str]:
    """The messages about a text that has its data (lines 1 to 3) in front of it."""
    with pytest.raises(ConfigError) as raised:
        parsed(DATA + text)
    return str(raised.value).split("\n")


def test_config_of_data_alone_has_the_defaults() -> None:
    config = parsed(DATA)
    assert config == Config(data=config.data)
    assert config.data.train[0].source == Path("a")
    assert config.data.valid.target == Path("d")


def test_float_field_reads_every_way_to_write_a_number() -> None:
    for text, value in [("1e-4", 1e-4), ("3", 3.0), (".5", 0.5), ("2.", 2.0), ("+1E2", 100.0)]:
        config = parsed(f"{DATA}training: {{optimizer: {{learning_rate: {text}}}}}")
        assert config.training.optimizer.learning_rate == value
        assert isinstance(config.training.optimizer.learning_rate, float)


def test_int_field_is_decimal_and_never_octal_or_sexagesimal() -> None:
    assert parsed(f"{DATA}seed: 010").seed == 10
    assert parsed(f"{DATA}seed: 1_000").seed == 1000
    assert complaints("seed: 12:30") == ["x.yaml:4: seed: must be a whole number (12:30)"]


def test_text_field_keeps_what_yaml_would_take_for_something_else() -> None:
    for text in ("no", "on", "true", "010", "1e-4", "12:30", "'null'", '""'):
        config = parsed(DATA.replace("data:", f"data:\n  source_language: {text}"))
        assert config.data.source_language == text.strip("'\"")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("seed: 1.0", "seed: must be a whole number (1.0)"),
        ("seed: 1.5e0", "seed: must be a whole number (1.5e0)"),
        ("seed: 1e-3", "seed: must be a whole number (1e-3)"),
        ("seed: 100.0", "seed: must be a whole number (100.0)"),
        (
            "training: {optimizer: {kind: AdamX}}",
            "training.optimizer.kind: must be one of adamw, adam, muon (AdamX); "
            "did you mean adam?",
        ),
        (
            "training: {optimizer: {kind: AdamW}}",
            "training.optimizer.kind: must be one of adamw, adam, muon (AdamW); "
            "did you mean adamw?",
        ),
        (
            "tokenizer: {kind: BPE}",
            "tokenizer.kind: must be one of subword, word, char, marian, m2m, t5 (BPE); "
            "write {kind: subword, algorithm: bpe}",
        ),
        (
            "training: {patience: none}",
            "training.patience: must be a whole number (none); write null",
        ),
        (
            "model: {latent: off}",
            "model.latent: must be a mapping of keys to values (off); write null",
        ),
        (
            "training: {gradient_accumulation_steps: yes}",
            "training.gradient_accumulation_steps: must be a whole number (yes)",
        ),
        (
            "training: {tensorboard: True}",
            "training.tensorboard: must be true or false (True); write true",
        ),
        ("decoding: {beam: 5}", "decoding.beam: no such key; did you mean beam_size?"),
        ("model: {d_model: 5}", "model.d_model: no such key; did you mean dim?"),
        ("beam: 5", "beam: no such key; did you mean decoding.beam_size?"),
        ("seed: true", "seed: must be a whole number (true)"),
        ("seed: 0x1F", "seed: must be a whole number (0x1F)"),
        ("seed: '1'", 'seed: must be a whole number ("1")'),
        ("seed: ١", "seed: must be a whole number (١)"),
        ("seed: null", "seed: must be a whole number (null)"),
        ("seed:", "seed: must be a whole number (nothing)"),
        ("seed: [1]", "seed: must be a whole number (a list)"),
        ("seed: {a: 1}", "seed: must be a whole number (a mapping)"),
        ("seed: " + "9" * 5000, f"seed: must be a whole number ({'9' * 60}...)"),
        ("seed: -1", "seed: must be at least 0 (-1)"),
        ("model: {dropout: nan}", "model.dropout: must be a number (nan)"),
        ("model: {dropout: .inf}", "model.dropout: must be a number (.inf)"),
        ("model: {dropout: 1e999}", "model.dropout: must be a number (1e999)"),
        ("model: {dropout: '0.1'}", 'model.dropout: must be a number ("0.1")'),
        ("model: {dropout: 1.0}", "model.dropout: must be below 1 (1.0)"),
        ("model: {norm_epsilon: 0}", "model.norm_epsilon: must be above 0 (0.0)"),
        (
            "tokenizer: {vocab_size: 1_000_001}",
            "tokenizer.vocab_size: must be at most 1000000 (1000001)",
        ),
        (
            "tokenizer: {shared: no}",
            "tokenizer.shared: must be true or false (no); write false",
        ),
        (
            "tokenizer: {shared: 'true'}",
            'tokenizer.shared: must be true or false ("true")',
        ),
        (
            "tokenizer: {shared: null}",
            "tokenizer.shared: must be true or false (null)",
        ),
        (
            "tokenizer: {algorithm: bpee}",
            "tokenizer.algorithm: must be one of bpe, unigram (bpee); did you mean bpe?",
        ),
        (
            "tokenizer: {algorithm: wordpiece}",
            "tokenizer.algorithm: must be one of bpe, unigram (wordpiece)",
        ),
        (
            "model: {kind: rnn}",
            "model.kind: must be one of encoder_decoder, decoder_only, masked_encoder (rnn)",
        ),
        ("model: 5", "model: must be a mapping of keys to values (5)"),
        ("model:", "model: must be a mapping of keys to values (nothing)"),
        ("model: []", "model: must be a mapping of keys to values (a list)"),
        (
            "tokenizer: char",
            "tokenizer: must be a mapping of keys to values (char); write {kind: char}",
        ),
        (
            "tokenizer: {kind: caracter}",
            "tokenizer.kind: must be one of subword, word, char, marian, m2m, t5 (caracter)",
        ),
        (
            "training: {optimizer: {betas: 0.9}}",
            "training.optimizer.betas: must be a list (0.9)",
        ),
        (
            "training: {optimizer: {betas: [0.9]}}",
            "training.optimizer.betas: must be a list of 2 (a list of 1)",
        ),
        (
            "training: {optimizer: {betas: [0.9, x]}}",
            "training.optimizer.betas.1: must be a number (x)",
        ),
        (
            "training: {optimizer: {betas: [0.9, 1]}}",
            "training.optimizer.betas.1: must be below 1 (1.0)",
        ),
        ("sead: 3", "sead: no such key; did you mean seed?"),
        (
            "training: {learning_rate: 3}",
            "training.learning_rate: no such key; did you mean optimizer.learning_rate?",
        ),
        (
            "training: {warmup: 3}",
            "training.warmup: no such key; did you mean schedule.warmup_steps?",
        ),
        (
            "evaluation: {rouge: {}}",
            "evaluation.rouge: no such key; the keys here are bleu, chrf",
        ),
        (
            "training: {schedule: {step_size: 5}}",
            "training.schedule.step_size: belongs to kind: step; this one is kind: cosine",
        ),
        (
            "training: {schedule: {kind: step, final_ratio: 0}}",
            "training.schedule.final_ratio: belongs to kind: cosine or linear; "
            "this one is kind: step",
        ),
        ("seed: !!int 5", "seed: must have no tag (!!int)"),
        ("seed: !shout 5", "seed: must have no tag (!shout)"),
        (
            "seed: !!python/object/apply:os.getcwd []",
            "seed: must have no tag (!!python/object/apply:os.getcwd)",
        ),
        ("? [a]\n: 1", "has a key that is not a word (a list)"),
        ("<<: {seed: 1}", "<<: no such key; the keys here are seed, data, tokenizer, model, "
         "training, decoding, evaluation"),
    ],
)  # fmt: skip
def test_parse_refuses_with_line_key_rule_and_value(line: str, complaint: str) -> None:
    assert complaints(line) == [f"x.yaml:4: {complaint}"]


def test_text_field_refuses_null() -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(DATA.replace("data:", "data:\n  source_language: ~"))
    assert str(raised.value) == "x.yaml:2: data.source_language: must be text (~)"


@pytest.mark.parametrize("text", ["''", "null", '"a\\0b"', '"\\ud800"'])
def test_path_field_refuses_what_names_no_file(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(DATA.replace("source: c", f"source: {text}"))
    assert str(raised.value).startswith("x.yaml:3: data.valid.source: must be a path (")


def test_half_a_character_is_no_text() -> None:
    assert complaints('  source_language: "e\\ud800"') == [
        'x.yaml:4: data.source_language: must be text ("e\\ud800")'
    ]


def test_bytes_of_a_path_need_not_be_utf8() -> None:
    # PyYAML writes the surrogate that stands for a byte as an escape.
    (text,) = parsed(DATA.replace("source: a", 'source: "\\udcff"')).data.train
    assert os.fsencode(text.source) == b"\xff"


@pytest.mark.parametrize(
    "name",
    [
        "../../../evil",
        "/absolute",
        "a/b",
        "",
        ".",
        "..",
        "a\\nb",
        "\\x1b[31m",
        "\\u202e",
        "\\ud800",
    ],
)
def test_name_of_a_test_set_is_one_component_of_a_path(name: str) -> None:
    (complaint,) = complaints(f'  test: {{"{name}": {{source: a, target: b}}}}')
    rule = "must be the name of a file, without a folder or a control character"
    assert f": {rule} (" in complaint
    assert complaint.startswith("x.yaml:4: data.test.")
    assert complaint.isprintable()


def test_names_of_test_sets_may_have_any_letters() -> None:
    names = "newstest2014", "a.b", "тест", "with blank", "-x"
    test = ", ".join(f'"{name}": {{source: a, target: b}}' for name in names)
    assert tuple(parsed(DATA + f"  test: {{{test}}}\n").data.test) == names


def test_path_field_expands_the_home_of_known_users_only() -> None:
    train = parsed("data: {train: [{source: ~/a, target: ~nobody-of-that-name/b}], valid: "
                   "{source: a, target: b}}").data.train[0]  # fmt: skip
    assert train.source == Path.home() / "a"
    assert train.target == Path("~nobody-of-that-name/b")


def test_optional_field_takes_null_in_each_spelling() -> None:
    for text in ("null", "~", "", "Null", "NULL"):
        assert parsed(f"{DATA}training:\n  clip_norm: {text}").training.clip_norm is None
    message = "x.yaml:4: training.clip_norm: must be a number (none); write null"
    assert complaints("training: {clip_norm: none}") == [message]


def test_whole_number_may_have_an_exponent() -> None:
    config = parsed(f"{DATA}training: {{max_steps: 1e5, batch_tokens: 2.5e4}}")
    assert (config.training.max_steps, config.training.batch_tokens) == (100_000, 25_000)
    assert isinstance(config.training.max_steps, int)


def test_union_is_chosen_by_kind_and_without_it_is_the_default_member() -> None:
    config = parsed(
        f"{DATA}tokenizer: {{vocab_size: 500}}\n"
        "model: {positions: {kind: learned}}\n"
        "training: {optimizer: {kind: adam}, schedule: {kind: 'step', step_size: 3}}\n"
    )
    assert config.tokenizer == SubwordConfig(vocab_size=500)
    assert config.model.positions == LearnedPositions()
    assert config.training.optimizer == AdamConfig()
    assert config.training.schedule == StepSchedule(step_size=3)
    assert parsed(f"{DATA}training: {{schedule: {{}}}}").training.schedule == CosineSchedule()
    assert parsed(f"{DATA}tokenizer: {{kind: char}}").tokenizer == CharConfig()


def test_named_texts_are_a_mapping_and_each_is_read() -> None:
    assert list(parsed(DATA + "  test: {no: {source: a, target: b}}\n").data.test) == ["no"]
    assert complaints("  test: [x]") == [
        "x.yaml:4: data.test: must be a mapping of keys to values (a list)"
    ]
    assert complaints("  test:\n    x: {source: a, target: []}\n    y: {source: a}") == [
        "x.yaml:5: data.test.x.target: must be a path (a list)",
        "x.yaml:6: data.test.y.target: is required",
    ]


def test_text_alone_is_told_from_a_pair_by_its_key() -> None:
    data = parsed(
        "data: {train: [{text: a, weight: 2}, {text: b}], valid: {text: c}}\n"
        "model: {kind: masked_encoder}\ntraining: {selection_metric: loss}\n"
    ).data
    assert data.train == (
        PlainTrainingText(text=Path("a"), weight=2.0),
        PlainTrainingText(text=Path("b")),
    )
    assert data.valid == PlainText(text=Path("c"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{text: a, source: b, target: c}", ": must have source and target, or pairs, or text "
         "(text, source, target)"),
        ("{txt: a}", ": must have source and target, or pairs, or text (txt)"),
        ("{}", ": must have source and target, or pairs, or text (nothing)"),
        ("{source: a}", ".target: is required"),
        ("{text: a, wieght: 2}", ".wieght: no such key; did you mean weight?"),
        ("{text: [a]}", ".text: must be a path (a list)"),
        ("a", ": must be a mapping of keys to values (a)"),
    ],
)  # fmt: skip
def test_text_that_is_neither_alone_nor_a_pair_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(f"data:\n  valid: {{source: c, target: d}}\n  train: [{text}]\n")
    assert str(raised.value) == f"x.yaml:3: data.train.0{complaint}"


def test_alias_stands_for_what_it_names() -> None:
    config = parsed(
        "data:\n  train: [&text {source: a, target: b}]\n  valid: *text\n  test: {again: *text}\n"
    )
    assert config.data.valid.source == config.data.train[0].source
    assert config.data.test["again"] == config.data.valid


def test_alias_inside_itself_is_refused_like_any_wrong_value() -> None:
    assert complaints("model: &m {positions: *m}") == [
        "x.yaml:4: model.positions.positions: no such key; "
        "the keys here are kind, frequencies, offset"
    ]


@pytest.mark.parametrize(
    "texts",
    [
        "&a {source: a, target: b}" + ", *a" * 2000,
        "&a [x, x, x, x, x, x, x, x], &b [" + "*a, " * 50 + "], " + "*b, " * 50,
        "a, " * 10_000,
    ],
)
def test_nodes_of_aliases_count(texts: str) -> None:
    rule = "must have at most 10,000 keys and values, those of aliases included"
    with pytest.raises(ConfigError) as raised:
        parsed(DATA.replace("{source: a, target: b}", texts))
    assert str(raised.value) == f"x.yaml: {rule}"


def test_key_written_twice_is_refused() -> None:
    assert complaints("seed: 1\nmodel: {}\nseed: 2") == [
        "x.yaml:6: seed: is written twice, first at x.yaml:4"
    ]


def test_missing_key_names_the_line_of_its_mapping() -> None:
    with pytest.raises(ConfigError) as raised:
        parsed("seed: 1\ndata:\n  train:\n    - target: b\n")
    assert str(raised.value).split("\n") == [
        "x.yaml:2: data.valid: is required",
        "x.yaml:4: data.train.0.source: is required",
    ]
    with pytest.raises(ConfigError) as raised:
        parsed("seed: 1\n")
    assert str(raised.value) == "x.yaml: data: is required"


def test_root_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        parsed("- seed\n")
    assert str(raised.value) == "x.yaml: must be a mapping of keys to values (a list)"


def test_conflict_stands_at_the_line_of_its_key() -> None:
    assert complaints("model:\n  dim: 256\n  num_heads: 3\n") == [
        "x.yaml:6: model.num_heads: must divide dim 256 (3)"
    ]


def test_conflict_of_an_unwritten_key_stands_at_the_nearest_written_one() -> None:
    assert complaints("model:\n  dim: 258\n") == [
        "x.yaml:4: model.num_heads: must divide dim 258 (4)"
    ]
    with pytest.raises(ConfigError) as raised:
        parsed(DATA + "  filters: {max_length: 5000}\n")
    assert str(raised.value) == (
        "x.yaml: training.batch_tokens: must be above 5000, which is "
        "data.filters.max_length with tags, or a long sentence fits no batch (4096)"
    )


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    assert complaints(
        "evaluation: {blue: {}}\n"
        "decoding: {beam_size: 0}\n"
        "training: {max_steps: 10, report_every: often}\n"
        "model: {num_heads: 3}\n"
        "tokenizer: {vocab_size: 100, shared: false}\n"
    ) == [
        "x.yaml:4: evaluation.blue: no such key; did you mean bleu?",
        "x.yaml:5: decoding.beam_size: must be at least 1 (0)",
        "x.yaml:6: training.schedule.warmup_steps: must be at most training.max_steps 10 (400)",
        "x.yaml:6: training.validate_every: must be at most training.max_steps 10, "
        "or nothing is validated (1000)",
        "x.yaml:6: training.report_every: must be a whole number (often)",
        "x.yaml:7: model.num_heads: must divide dim 256 (3)",
        "x.yaml:8: tokenizer.vocab_size: must be at least 273 with byte_fallback, "
        "which adds 16 special pieces and 256 bytes (100); enlarge it or set byte_fallback: false",
    ]


def test_consequence_of_a_broken_value_is_not_reported() -> None:
    assert complaints("model: {num_heads: 0}") == [
        "x.yaml:4: model.num_heads: must be at least 1 (0)"
    ]
    assert complaints("model: {dim: 6, num_head: 3}") == [
        "x.yaml:4: model.num_head: no such key; did you mean num_heads?"
    ]


@pytest.mark.parametrize("value", ["often", "'1'", "[1.0]", "{value: 1.0}", "true", "nan"])
def test_what_is_no_number_hides_no_rule_between_other_keys(value: str) -> None:
    text = (
        "training: {clip_norm: %s, max_steps: 500, validate_every: 900}\n"
        "tokenizer: {kind: char, shared: false}\n"
    )
    rules = complaints(text % "1.0")
    assert [rule.split(": ")[1] for rule in rules] == [
        "model.tie_embeddings",
        "training.validate_every",
    ]
    (mistake,) = set(complaints(text % value)) - set(rules)
    assert mistake.startswith("x.yaml:4: training.clip_norm: must be a number (")
    assert sorted(complaints(text % value)) == sorted([mistake, *rules])


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ("training: {max_steps: often, validate_every: 9000}", "training.max_steps"),
        ("training: {keep_checkpoints: x, average_checkpoints: 5}", "training.keep_checkpoints"),
        ("training: {ema_decay: 0.9, average_checkpoints: none}", "training.average_checkpoints"),
        ("model: {num_heads: 3, dim: [6]}", "model.dim"),
        ("decoding: {kind: greedy, max_length: x, min_length: 7}", "decoding.max_length"),
    ],
)
def test_consequence_of_what_is_no_number_is_not_reported(section: str, where: str) -> None:
    (complaint,) = complaints(section)
    assert complaint.startswith(f"x.yaml:4: {where}: must be a whole number (")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model\n  dim: 5\n", "x.yaml:1: has no colon after model; write key: value"),
        (
            "seed: 1\n# here\nmodel # of 3 layers\n  dim: 5\n",
            "x.yaml:3: has no colon after model; write key: value",
        ),
        ("model:\n  dim 5\n  num_heads: 2\n", "x.yaml:2: has no colon after dim; write key: value"),
        ("seed: 1\nmodel\nseed: 2\n", "x.yaml:2: has no colon after model; write key: value"),
        (
            "a: b: c",
            "x.yaml:1: has two colons; put the value in quotes, or each key in a line of its own",
        ),
        (
            "a: 1\n  b: 2\n",
            "x.yaml:2: is indented unlike its neighbors; indent the keys of a section alike",
        ),
        (
            "a:\n  b: 1\n c: 2\n",
            "x.yaml:3: is indented unlike its neighbors; indent the keys of a section alike",
        ),
        ("a:\n\tb: 1\n", "x.yaml:2: has a tab, which YAML does not allow here; indent with spaces"),
        ("a: 1\nb: [1, 2\n", "x.yaml:2: has a [ that is not closed; add ]"),
        ("a: {x: 1\nb: 2\n", "x.yaml:1: has a { that is not closed; add }"),
        ('a: 1\nb: "abc\nc: 1\n', "x.yaml:2: has a quote that is not closed; add the other quote"),
        (
            'a: "\\q"\n',
            "x.yaml:1: has an unknown escape in double quotes; "
            "double each backslash, or use single quotes",
        ),
        (
            'a: "\\xZZ"\n',
            "x.yaml:1: has an unknown escape in double quotes; "
            "double each backslash, or use single quotes",
        ),
        ("a: @b\n", "x.yaml:1: begins a value with @; put the value in quotes"),
        *(
            (f"a: 1{end}b: @c{end}", "x.yaml:2: begins a value with @; put the value in quotes")
            for end in ("\r", "\r\n", "\x85", "\u2028", "\u2029")
        ),
        ("a: 1\rb\rc: 2\r", "x.yaml:2: has no colon after b; write key: value"),
        ("a: *b", "x.yaml:1: begins a value with * or &; put the value in quotes"),
        ("a: &\n", "x.yaml:1: begins a value with * or &; put the value in quotes"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: begins a second document; remove the line ---"),
        ("a: ]\n", "x.yaml:1: is not valid YAML; check colons, brackets, quotes and indentation"),
        (
            "%YAML 9.0\n---\na: 1\n",
            "x.yaml:1: is not valid YAML; check colons, brackets, quotes and indentation",
        ),
        ("a: 1\nb: \x07\n", "x.yaml:2: has a control character (U+0007)"),
        *(
            (f'"{escape}": 1', "x.yaml: is not valid YAML: an escape names no character of Unicode")
            for escape in ("\\UFFFFFFFF", "\\U00110000")
        ),
        ("[" * 600, "x.yaml: is nested too deeply"),
    ],
)
def test_compose_says_where_the_text_is_not_yaml(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(text, "x.yaml")
    assert str(raised.value) == complaint


def test_compose_finds_nothing_in_comments() -> None:
    assert compose("# nothing yet\n", "x.yaml") is None
