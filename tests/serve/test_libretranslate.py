"""Clients of LibreTranslate are answered in its shapes."""

import copy
from dataclasses import replace

import pytest

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.serve.service import Limits
from tformer_cli.translate.options import SearchOptions

LANGUAGES = {"source": "source", "target": "target"}


def test_a_text_and_a_list_of_texts(server, translator):
    first, second = translator.translate(["ab cd", "e"])
    assert server.post("/translate", q="ab cd", **LANGUAGES).json() == {"translatedText": first}
    answer = server.post("/translate", q=["ab cd", "e"], **LANGUAGES, format="text")
    assert answer.json() == {"translatedText": [first, second]}


def test_forms_are_read(server, translator):
    first, second = translator.translate(["ab & cd", "e"])
    answer = server.ask("POST", "/translate", data={"q": "ab & cd", **LANGUAGES})
    assert answer.json() == {"translatedText": first}
    answer = server.ask("POST", "/translate", data={"q": ["ab & cd", "e"], **LANGUAGES})
    assert answer.json() == {"translatedText": [first, second]}


def test_a_form_may_have_characters_as_they_are(server, translator):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = "q=ab+\u00fc&source=source&target=target".encode()
    answer = server.ask("POST", "/translate", content=body, headers=form)
    assert answer.json() == {"translatedText": translator.translate(["ab \u00fc"])[0]}
    answer = server.ask("POST", "/translate", content=body[:6], headers=form)
    assert answer.json()["error"].startswith("body: is not a valid form")


def test_a_form_has_as_many_fields_as_texts_and_some_others(serve, translator):
    server = serve(translator, limits=Limits(max_texts=3))
    for count, others, status in ((3, 98, 200), (4, 0, 400), (3, 99, 400)):
        fields = {"q": ["ab"] * count, "x": ["y"] * others, **LANGUAGES}
        answer = server.ask("POST", "/translate", data=fields)
        assert answer.status_code == status
    assert answer.json()["error"].startswith("body: is not a valid form (Max number of fields")
    further = dict.fromkeys(map(str, range(200)))
    assert server.post("/translate", q="ab", **LANGUAGES, **further).status_code == 200


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_breaks_stay(server, translator, end):
    first, second = translator.translate(["ab cd", "e"])
    answer = server.post("/translate", q=f"ab cd{end}{end}e{end}", **LANGUAGES).json()
    assert answer == {"translatedText": f"{first}{end}{end}{second}{end}"}


def test_lines_of_whitespace_are_not_searched(server, translator):
    first, second = translator.translate(["ab cd", "e"])
    many = "\n" * 40
    texts = [f"{many}ab cd\n \t\ne", many, " "]
    answer = server.post("/translate", q=texts, **LANGUAGES).json()
    assert answer == {"translatedText": [f"{many}{first}\n\n{second}", many, ""]}
    assert server.queue.num_lines == 2
    assert server.post("/translate", q=" ", **LANGUAGES).json() == {"translatedText": ""}


@pytest.mark.parametrize("number", [3, "3"])
def test_alternatives_are_the_next_best_translations(server, translator, number):
    (expected,) = translator.nbest(["ab cd"], 4, decoding=SearchOptions(4))
    best, *others = dict.fromkeys(each.text for each in expected)
    answer = server.post("/translate", q="ab cd", alternatives=number, **LANGUAGES)
    assert answer.json() == {"translatedText": best, "alternatives": others}
    many = server.post("/translate", q=["ab cd", ""], alternatives=number, **LANGUAGES).json()
    assert many == {"translatedText": [best, ""], "alternatives": [others, []]}


def test_alternatives_of_a_diverse_beam_are_those_of_one_with_as_many_groups(serve, translator):
    diverse = copy.copy(translator)
    decoding = BeamConfig(beam_size=4, num_beam_groups=2, max_length=20)
    diverse.config = replace(translator.config, decoding=decoding)
    larger = BeamConfig(beam_size=6, num_beam_groups=2, max_length=20)
    (expected,) = translator.nbest(["ab cd"], 5, decoding=larger)
    best, *others = dict.fromkeys(each.text for each in expected)
    answer = serve(diverse).post("/translate", q="ab cd", alternatives=4, **LANGUAGES)
    assert answer.json() == {"translatedText": best, "alternatives": others}


@pytest.mark.parametrize("beam_size", [2, 4])
def test_a_diverse_beam_for_alternatives_is_as_large_as_whole_groups_allow(
    serve, translator, beam_size
):
    diverse = copy.copy(translator)
    decoding = BeamConfig(beam_size=beam_size, num_beam_groups=2, max_length=20)
    diverse.config = replace(translator.config, decoding=decoding)
    searches = []

    def translate_windows(windows, count, *, decoding, **options):
        searches.append((decoding, count))
        return translator.translate_windows(windows, count, decoding=decoding, **options)

    diverse.translate_windows = translate_windows
    server = serve(diverse, limits=Limits(max_candidates=5))
    answer = server.post("/translate", q="ab cd", alternatives=4, **LANGUAGES)
    largest = BeamConfig(beam_size=4, num_beam_groups=2, max_length=20)
    assert searches == [(largest, 4)]
    (expected,) = translator.nbest(["ab cd"], 4, decoding=largest)
    best, *others = dict.fromkeys(each.text for each in expected)
    assert answer.json() == {"translatedText": best, "alternatives": others}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**LANGUAGES}, "q: is required"),
        ({"q": "a", "target": "target"}, "source: is required"),
        ({"q": "a", **LANGUAGES, "format": "html"}, "format: must be one of text (html)"),
        (
            {"q": "a", **LANGUAGES, "alternatives": "many"},
            'alternatives: must be a whole number ("many")',
        ),
        (
            {"q": "a", "source": "auto", "target": "target"},
            "source: must be a language: none is detected (auto); name the language",
        ),
        (
            {"q": "a", "source": "en", "target": "xx"},
            "source, target: no such model (source=en, target=xx); "
            "choose from: run (source -> target)",
        ),
    ],
)
def test_mistakes_have_the_one_status_and_body_of_its_errors(server, fields, message):
    answer = server.post("/translate", **fields)
    assert answer.status_code == 400
    assert answer.json()["error"] == message


def test_languages_health_and_what_is_not_offered(server):
    assert server.ask("GET", "/languages").json() == [
        {"code": "target", "name": "target", "targets": []},
        {"code": "source", "name": "source", "targets": ["target"]},
    ]
    assert server.ask("GET", "/health").json() == {"status": "ok"}
    refused = server.post("/detect", q="ab")
    assert refused.status_code == 501
    assert refused.json()["error"] == "/detect: is not offered; name the language of a text"
