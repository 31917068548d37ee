"""The server's own API gives what the library gives, and names all that is wrong with a request."""

import asyncio
import itertools
import json
import re
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy import write_languages

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.decoding import BeamConfig, SampleConfig
from tformer_cli.config.schema.fields import annotations, extras
from tformer_cli.serve.guard import ApiKeys
from tformer_cli.serve.schema import problems
from tformer_cli.serve.service import Limits
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.segments import Terminology
from tformer_cli.training.trainer import train
from tformer_cli.translate.confidence import ConfidenceModel
from tformer_cli.translate.options import MBR, SearchOptions
from tformer_cli.translate.translator import Translator

TEXTS = ["ab cd", "e", "", "fg ab c"]
# Texts that are hard to carry: line separators, NUL, emoji beyond the basic plane, combining marks.
UNICODE = [
    "ab\u2028cd",
    "ab\u2029cd\u0085e",
    "ab\x00cd",
    "a\U0001f600b",
    "a\u0301b",
    "\ufeffab",
    "ab\r\ncd",
    "  ab  ",
    "\t",
]


def test_texts_are_translated_as_by_the_library(server, translator):
    answer = server.post(text=TEXTS)
    assert answer.status_code == 200
    content = answer.json()
    assert content["model"] == "run"
    assert (content["source"], content["target"]) == ("source", "target")
    expected = list(translator.nbest(TEXTS, 1))
    assert [each["translations"] for each in content["texts"]] == [
        [
            {
                "text": best.text,
                "score": pytest.approx(best.score, abs=1e-4),
                "log_prob": pytest.approx(best.log_prob, abs=1e-4),
                "finished": best.finished,
            }
        ]
        for (best,) in expected
    ]
    (alone,) = server.post(text="ab cd").json()["texts"]
    assert alone["translations"][0]["text"] == expected[0][0].text


def texts_of(answer) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    return [[one["text"] for one in text["translations"]] for text in answer.json()["texts"]]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"beam": 4}, {"decoding": SearchOptions(4)}),
        ({"beam": 4, "length_penalty": 0.2}, {"decoding": SearchOptions(4, 0.2)}),
        (
            {"set": ["decoding={kind: sample, max_length: 20, temperature: 1.5}"]},
            {"decoding": SampleConfig(max_length=20, temperature=1.5)},
        ),
        (
            {"beam": 4, "mbr": "chrf", "candidates": 4},
            {"decoding": SearchOptions(4), "mbr": MBR("chrf", 4)},
        ),
        (
            {"beam": 4, "constraints": [["GG"], [], [], ["A", "F"]]},
            {"decoding": SearchOptions(4), "required": [["GG"], [], [], ["A", "F"]]},
        ),
        (
            {"beam": 4, "prefixes": ["D", "", "", "AB"]},
            {"decoding": SearchOptions(4), "prefixes": ["D", "", "", "AB"]},
        ),
        ({"beam": 4, "ban": ["C", "B A"]}, {"decoding": SearchOptions(4), "banned": ["C", "B A"]}),
        (
            {"beam": 4, "terminology": {"ab": "GG", "e": "F"}},
            {
                "decoding": SearchOptions(4),
                "terminology": Terminology(["ab\tGG", "e\tF"], "terms", source_language="source"),
            },
        ),
    ],
    ids=lambda value: next(reversed(value)) if isinstance(value, dict) else None,
)
def test_searches_are_those_of_the_library(server, translator, fields, options, count):
    expected = [[one.text for one in line] for line in translator.nbest(TEXTS, count, **options)]
    assert texts_of(server.post(text=TEXTS, nbest=count, **fields)) == expected


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Translator:
    """The translator of a run of three directions."""
    folder = tmp_path_factory.mktemp("many")
    keys = ("max_steps", "validate_every", "save_every")
    changes = [*(f"training.{key}=60" for key in keys), "training.schedule.warmup_steps=1"]
    config = load_config(write_languages(folder / "data"), changes)
    train(config, RunDirectory(folder / "run"), device=torch.device("cpu"))
    return Translator.load(folder / "run", backend="native")


def test_a_model_translates_in_all_its_directions(serve, many):
    server = serve(many)
    listed = server.ask("GET", "/api/models").json()["models"]
    directions = [(model["source"], model["target"]) for model in listed]
    assert directions == [("aa", "bb"), ("bb", "aa"), ("aa", "cc")]
    translations = []
    for source, target in directions:
        answer = server.post(text=TEXTS, source=source, target=target)
        expected = many.translate(TEXTS, to=target)
        assert texts_of(answer) == [[text] for text in expected]
        assert (answer.json()["source"], answer.json()["target"]) == (source, target)
        form = {"q": TEXTS, "source": source, "target": target}
        assert server.post("/translate", **form).json() == {"translatedText": expected}
        translations.append(expected)
    assert translations[0] != translations[2]
    languages = server.ask("GET", "/languages").json()
    assert {each["code"]: each["targets"] for each in languages} == {
        "aa": ["bb", "cc"],
        "bb": ["aa"],
        "cc": [],
    }


def test_what_leaves_a_direction_open_is_refused(serve, many):
    server = serve(many)
    assert server.post(text="ab", source="bb").json()["target"] == "aa"
    assert server.post(text="ab", target="cc").json()["source"] == "aa"
    for fields in ({}, {"source": "aa"}, {"model": server.queue.model.name}):
        response = server.post(text="ab", **fields)
        assert response.status_code == 422
        assert response.json()["error"].startswith(
            "target: is required: the model has several directions; choose from: "
        )


def test_an_engine_of_another_program_translates_alike(serve, toy_run, translator):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    server = serve(Translator.load(toy_run))
    for fields in ({}, {"beam": 4}, {"beam": 4, "ban": ["C"]}):
        options = {"decoding": SearchOptions(fields.get("beam")), "banned": fields.get("ban", ())}
        expected = [[text] for text in translator.translate(TEXTS, **options)]
        assert texts_of(server.post(text=TEXTS, **fields)) == expected


def test_alignments_come_where_they_are_asked_for(server, translator):
    answer = server.post(text=TEXTS, alignments=True).json()
    for text, (best,) in zip(
        answer["texts"], translator.nbest(TEXTS, 1, aligned=True), strict=True
    ):
        assert text["source_tokens"] == list(best.source_tokens)
        assert text["translations"][0]["tokens"] == list(best.tokens)
        assert text["translations"][0]["alignments"] == [list(pair) for pair in best.alignments]


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"defects": True}, {"inspected": True}),
        ({"repair": True}, {"repair": True}),
        ({"keep": ["numbers", "addresses"]}, {"keep": ["numbers", "addresses"]}),
    ],
    ids=str,
)
def test_defects_and_repairs_are_those_of_the_library(server, translator, fields, options):
    texts = ["ab 23 cd", "e a@b.org", "", "a b c d", "f 1,000"]
    expected = list(translator.nbest(texts, 1, **options))
    assert any(best.defects for (best,) in expected)
    answer = server.post(text=texts, **fields).json()
    for text, (best,) in zip(answer["texts"], expected, strict=True):
        (translation,) = text["translations"]
        assert translation["text"] == best.text
        assert translation["repair"] == best.repair
        assert translation["defects"] == [
            {"kind": defect.kind, "words": list(defect.words)} for defect in best.defects
        ]


def test_a_calibrated_run_answers_with_confidences(serve, toy_run):
    model = ConfidenceModel("", 0.5, (1.0, 1.0, 0.2, 0.5), 0.0)
    translator = Translator.load(toy_run, backend="native")
    translator.load_confidence = lambda: model
    server = serve(translator)
    texts = ["ab cd", "", "e {name} f"]
    answer = server.post(text=texts).json()["texts"]
    for text, (best,) in zip(answer, translator.nbest(texts, 1, inspected=True), strict=True):
        (translation,) = text["translations"]
        assert translation.get("confidence") == best.confidence
        assert "defects" not in translation
    assert "confidence" not in answer[1]["translations"][0]
    other = server.post(text=texts, beam=3).json()["texts"]
    assert all("confidence" not in text["translations"][0] for text in other)


@pytest.mark.parametrize("text", UNICODE, ids=ascii)
def test_any_character_is_translated_as_by_the_library(server, translator, text):
    (expected,) = translator.translate([text])
    assert texts_of(server.post(text=text)) == [[expected]]
    escaped = json.dumps({"text": text}, ensure_ascii=True)
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = server.ask("POST", "/api/translate", content=escaped, headers=headers)
    assert texts_of(answer) == [[expected]]


def test_a_long_text_is_split_as_by_the_library(server, translator):
    text = ". ".join(["ab cd ef"] * 100)
    assert texts_of(server.post(text=text)) == [translator.translate([text])]


def test_many_clients_get_their_own_translations(server, translator):
    texts = [f"{a}{b} {c}" for a in "abcdefg" for b in "abc" for c in "ab"]

    async def ask_all():
        async with server.client() as client:
            fields = [{"text": text, "beam": 1 + index % 3} for index, text in enumerate(texts)]
            posts = (client.post("/api/translate", json=each) for each in fields)
            return await asyncio.gather(*posts)

    for index, (text, answer) in enumerate(zip(texts, asyncio.run(ask_all()), strict=True)):
        expected = translator.translate([text], decoding=SearchOptions(1 + index % 3))
        assert texts_of(answer) == [expected]


# -------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({}, ["text: is required"]),
        ({"text": 3}, ["text: must be text or a list (3)"]),
        ({"text": []}, ["text: must not be empty"]),
        ({"text": ["a", None]}, ["text[1]: must be text (null)"]),
        ({"text": "a", "beam": True}, ["beam: must be a whole number (true)"]),
        ({"text": "a", "beam": 2.0}, ["beam: must be a whole number (2.0)"]),
        (
            {"text": "a", "beam": 0, "nbest": 99},
            ["beam: must be at least 1 (0)", "nbest: must be at most 32 (99)"],
        ),
        ({"text": "a", "mbr": "ter"}, ["mbr: must be one of chrf, bleu (ter)"]),
        ({"text": "a" * 5001}, ["text: must have at most 5,000 characters (5,001); split it"]),
        (
            {"text": ["a"] * 129},
            ["text: must have at most 128 items (129); send several requests"],
        ),
        ({"text": "a", "prefixes": []}, ["prefixes: must have an item for each text (0 and 1)"]),
        (
            {"text": "a", "candidates": 3},
            ["candidates: has no effect without mbr (3); add mbr=chrf"],
        ),
        ({"text": "a", "terminology": {"b": 1}}, ["terminology.b: must be text (1)"]),
        (
            {"text": "a", "model": "b"},
            ["model: no such model (model=b); choose from: run (source -> target)"],
        ),
        (
            {"text": "a", "nbest": 4},
            ["nbest: must be at most the beam size 2 (4); use beam=4"],
        ),
        (
            {"text": "a", "beam": 4, "nbest": 2, "repair": True},
            ["repair: is for one translation of each line (2); use nbest=1"],
        ),
        (
            {"text": "a", "ban": ["B"] * 101, "tag": ["b"] * 33, "constraints": [["B"] * 101]},
            [
                "ban: must have at most 100 items (101); send several requests",
                "tag: must have at most 32 items (33); send several requests",
                "constraints[0]: must have at most 100 items (101); send several requests",
            ],
        ),
        ({"text": "a", "keep": ["\\d+"]}, None),
        ({"text": "a", "tag": ["b"]}, None),
        ({"text": "a", "beam": 1, "constraints": [["B"]]}, None),
        ({"text": "a", "terminology": {"b\n": "c\td"}}, None),
        ({"text": "a", "set": ["training.seed=3"]}, None),
        (
            {"text": "a", "set": ["decoding.beam_size=33", "decoding.max_length=999"]},
            [
                "decoding.max_length: must be at most 256 (999)",
                "decoding.beam_size: must be at most 32 (33)",
            ],
        ),
        (
            {"text": "a", "terminology": {"b" * 201: "c"}, "set": ["d" * 201]},
            [
                "a key of terminology: must have at most 200 characters (201); split it",
                "set[0]: must have at most 200 characters (201); split it",
            ],
        ),
        ({"text": "a", "beem": 1}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_fields_are_named_all_at_once(server, fields, problems):
    answer = server.post(**fields)
    assert answer.status_code == 422, answer.text
    content = answer.json()
    if problems is not None:
        assert content["problems"] == problems
    assert content["error"] == "\n".join(content["problems"])
    assert "`" not in content["error"]
    assert "--" not in content["error"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/translate", {"text": "a", "ban": [1] * 1000}),
        ("/api/translate", {"text": "a", **dict.fromkeys(map(str, range(1000)), 1)}),
        ("/translate", {"q": [1] * 1000, "source": "source", "target": "target"}),
    ],
    ids=["items", "fields", "texts"],
)
def test_an_answer_names_the_first_mistakes(server, path, fields):
    content = server.post(path, **fields).json()
    assert len(content["problems"]) == 20


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({"prefixes": ["", "A" * 255]}, 256),
        ({"prefixes": ["", "A" * 256]}, 257),
        ({"constraints": [[], ["A" * 20] * 12 + ["B" * 15]]}, 256),
        ({"constraints": [[], ["A" * 20] * 12 + ["B" * 16]]}, 257),
        ({"constraints": [[], ["A" * 4000]]}, 4001),
        ({"prefixes": ["", "A" * 200], "constraints": [[], ["B" * 56]]}, 257),
        ({"prefixes": ["", "A" * 200], "terminology": {"d": "C" * 56}}, 257),
    ],
    ids=str,
)
def test_what_is_required_fits_into_a_translation(server, fields, num_tokens):
    # The run's own max_length is lower than 256, up to which a request may raise it.
    answer = server.post(text=["ab", "c d"], **fields)
    if num_tokens <= 256:
        assert answer.status_code == 200
        return
    assert answer.status_code == 422
    assert answer.json()["error"] == (
        "text:2: requires more tokens than the 256 that a translation may have "
        f"({num_tokens:,} tokens); shorten its prefix or its required phrases"
    )


def test_an_unknown_field_is_named_with_the_known_ones(server):
    (line,) = server.post(text="a", beem=1).json()["problems"]
    assert line.startswith("beem: no such field; choose from: text, model, source, ")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"text"', 400),
        (b'{"text": NaN}', 400),
        (b'{"text": "\xff"}', 400),
        (b"[" * 100_000, 400),
        (b'{"beam": ' + b"9" * 5000 + b"}", 400),
        (b'{"text": "a\\ud800b"}', 422),
        (b'{"text": "a", "\\ud800": 1}', 422),
        (b'{"text": "a", "terminology": {"\\udc00": "b"}}', 422),
        (b'{"text": "a", "length_penalty": 1' + b"0" * 400 + b"}", 422),
        (b'{"text": "a", "nbest": 1' + b"0" * 400 + b"}", 422),
        (b'{"text": "a", "length_penalty": 1e999}', 422),
        (b'{"text": "a", "length_penalty": -1e999}', 422),
    ],
)
def test_garbage_is_refused(server, body, status):
    headers = {"Content-Type": "application/json"}
    answer = server.ask("POST", "/api/translate", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]
    # And a surrogate pair is a character.
    pair = server.ask(
        "POST", "/api/translate", content=rb'{"text": "\ud83d\ude00"}', headers=headers
    )
    assert pair.status_code == 200


def test_what_is_nested_deeper_than_can_be_shown_is_named():
    nested = list[object]()
    for _ in range(sys.getrecursionlimit()):
        nested = [nested]
    (problem,) = problems([nested], {"type": "array", "items": {"type": "string"}})
    assert str(problem) == "body[0]: must be text (nested too deeply)"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["text", "beam", "set", "terminology", "constraints", "x"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_answered_or_refused(server, content):
    body = json.dumps(content)
    if "Infinity" in body:
        return
    answer = server.ask(
        "POST", "/api/translate", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (200, 400, 422)


def test_other_media_types_methods_and_paths_are_refused(server):
    form = server.ask("POST", "/api/translate", data={"text": "a"})
    assert form.status_code == 415
    assert form.json()["error"] == (
        "Content-Type: must be application/json (application/x-www-form-urlencoded)"
    )
    assert server.ask("GET", "/api/translate").status_code == 405
    missing = server.ask("GET", "/api/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"] == (
        "GET /api/nothing: not found; /openapi.json has what there is"
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_path_that_is_unknown_is_so_by_any_method(server, method):
    missing = server.ask(method, "/api/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"] == (
        f"{method} /api/nothing: not found; /openapi.json has what there is"
    )
    assert server.ask(method, "/").status_code == 405
    assert server.ask(method, "/page.js").status_code == 405


def test_a_model_is_chosen_by_its_languages(server):
    assert server.post(text="a", source="source", target="target").status_code == 200
    assert server.post(text="a", source="target").json()["error"] == (
        "source: no such model (source=target); choose from: run (source -> target)"
    )


def test_models_are_listed(server, translator):
    (model,) = server.ask("GET", "/api/models").json()["models"]
    assert model["name"] == "run"
    assert model["checkpoint"].startswith("step-")
    assert model["can_align"] is True
    assert BeamConfig(**model["decoding"]) == translator.config.decoding


def test_the_document_describes_what_is_checked(server):
    document = server.ask("GET", "/openapi.json").json()
    body = document["paths"]["/api/translate"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert schema["properties"]["text"]["maxLength"] == Limits().max_characters
    assert all(field["description"] for field in schema["properties"].values())
    penalty = schema["properties"]["length_penalty"]
    (bounds,) = extras(annotations(BeamConfig)["length_penalty"])
    assert (penalty["minimum"], penalty["maximum"]) == (bounds.ge, bounds.le)
    for path, operations in document["paths"].items():
        for method in operations:
            assert server.ask(method.upper(), path).status_code not in (404, 405), path


def test_the_document_has_each_status_that_is_answered(serve, translator):
    server = serve(translator, keys=ApiKeys(["key"]), limits=Limits(max_body=100))
    document = server.ask("GET", "/openapi.json").json()
    key = {"Authorization": "Bearer key"}
    json_type = {"Content-Type": "application/json"}
    for path, operations in document["paths"].items():
        for method, described in operations.items():
            requests = [
                {"headers": {"Host": "elsewhere"}},
                {"headers": {"Origin": "https://elsewhere"}},
                {"headers": key},
                {"headers": key, "json": {}},
                {"headers": key, "json": {"q": "a", "source": "source", "target": "x"}},
                {"headers": key, "json": {"text": "a" * 200}},
                {"headers": {**key, **json_type}, "content": b"{"},
                {"json": {}},
                {"headers": key, "json": {"text": "a"}},
                {"headers": key, "json": {"q": "a", "source": "source", "target": "target"}},
            ]
            if method == "get":
                requests = [*requests[:2], {}]
            answered = {
                str(server.ask(method.upper(), path, **request).status_code) for request in requests
            }
            statuses = described["responses"].keys()
            assert answered <= statuses
            # What takes a broken model, a slow one or a slow client is not asked for here.
            assert statuses - answered <= {"408", "500", "503", "504"}


def test_the_page_takes_nothing_from_elsewhere(server):
    page = server.ask("GET", "/")
    assert page.status_code == 200
    own = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    for path in own:
        assert path.startswith(("page.", "openapi.json", "data:"))
        if not path.startswith("data:"):
            assert server.ask("GET", f"/{path}").status_code == 200
    for path in ("", "page.css", "page.js", "language.js"):
        file = server.ask("GET", f"/{path}")
        assert "http://" not in file.text
        assert "https://" not in file.text
        policy = file.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy


def test_the_page_writes_text_as_text(server):
    script = server.ask("GET", "/page.js").text
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script


# ---------------------------------------------------------------------------------------- drafts


def events_of(answer) -> list[tuple[str, dict]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\n") for part in answer.text.strip().split("\n\n")]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in events
    ]


@pytest.mark.parametrize("backend", ["native", "auto"])
@pytest.mark.parametrize(
    "search",
    [
        {"beam": 1},
        {"beam": 4, "nbest": 3},
        {"beam": 4, "prefixes": ["D", "", "", "AB"]},
        {"set": ["decoding={kind: sample, max_length: 20}"]},
        {"set": ["decoding={kind: beam, beam_size: 4, num_beam_groups: 2}"]},
    ],
    ids=str,
)
def test_a_stream_ends_with_the_answer_that_others_get(
    serve, toy_run, backend, search, monkeypatch
):
    pytest.importorskip("starlette", reason="starlette is not installed")
    from tformer_cli.serve.translate_api import Drafts

    put, grown = Drafts.put, set()

    def noting(drafts, index, text):
        grown.add(index)
        put(drafts, index, text)

    monkeypatch.setattr(Drafts, "put", noting)
    server = serve(Translator.load(toy_run, backend=backend))
    fields = {"text": TEXTS, "alignments": True, **search}
    *drafts, (name, answer) = events_of(server.post(**fields, stream=True))
    assert name == "answer", answer
    assert answer == server.post(**fields).json()
    # Each text that is translated grows; the empty one does not.
    assert grown == {0, 1, 3}
    # A client gets those that are sent before the answer is there.
    assert all(name == "draft" and draft["index"] in grown for name, draft in drafts)


def test_drafts_of_a_greedy_search_become_its_translation(server):
    texts = ["ab cd", "e", "fg ab c", "a b c d e f g", "", "abc"] * 6
    *drafts, (_, answer) = events_of(server.post(text=texts, beam=1, stream=True))
    for index, text in enumerate(answer["texts"]):
        own = [draft["text"] for _, draft in drafts if draft["index"] == index]
        for shorter, longer in itertools.pairwise([*own, text["translations"][0]["text"]]):
            assert longer.startswith(shorter)


def test_errors_of_a_stream(server):
    assert server.post(text="a", beam=0, stream=True).status_code == 422
    fields = {"text": "ab cd. " * 40, "constraints": [["A"]], "beam": 4}
    ((name, content),) = events_of(server.post(**fields, stream=True))
    assert name == "error"
    assert content == server.post(**fields).json()


def test_words_are_where_alignments_count_them(server):
    text = "  ab cd  e fg "
    (content,) = server.post(text=text, alignments=True).json()["texts"]
    assert [text[start:end] for start, end in content["source_words"]] == text.split()
    (best,) = content["translations"]
    assert [best["text"][start:end] for start, end in best["words"]] == best["text"].split()
    for source, target in best["alignments"]:
        assert source < len(content["source_words"])
        assert target < len(best["words"])
