"""`tformer serve`: what it refuses before it serves, and what it hands on."""

import shutil
import socket
import subprocess
import sys

import pytest

from tformer_cli.config.load import save_decoding
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.serve.service import Limits

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")


def test_options_reach_the_server(tformer, toy_run, tmp_path, monkeypatch):
    from tformer_cli.serve import server

    served = {}

    def build_app(service, **options):
        served.update(options, limits=service.limits)

    def run_app(app, listener, queues, timeout):
        served.update(address=listener.getsockname(), timeout=timeout)
        for queue in queues:
            queue.close()

    monkeypatch.setattr(server, "build_app", build_app)
    monkeypatch.setattr(server, "run_app", run_app)
    (tmp_path / "keys").write_text("key\n")
    other = shutil.copytree(toy_run, tmp_path / "other")
    options = ("--allow-host", "A.example", "--allow-origin", "https://B.example/")
    options += ("--max-texts", "7", "--max-waiting", "8", "--timeout", "9")
    words = ("serve", toy_run, other, "--port", "0", "--api-keys", tmp_path / "keys")
    result = tformer(*words, "--backend", "native", *options)
    assert result.exit_code == 0, result.stderr
    host, port = served["address"]
    assert result.stderr == f"serving run, other at http://{host}:{port}\n"
    assert (host, served["timeout"]) == ("127.0.0.1", 9)
    assert served["limits"] == Limits(max_texts=7, max_waiting=8, timeout=9)
    assert served["hosts"] == ["127.0.0.1", "a.example"]
    assert served["origins"] == ["https://b.example"]


def test_defaults_of_options_are_those_of_limits(tformer):
    text = tformer("serve", "--help").stdout
    limits = Limits()
    for name in ("body", "characters", "texts", "candidates", "waiting"):
        assert f"[default: {getattr(limits, f'max_{name}')}; x>=1]" in " ".join(text.split())


def test_a_port_that_is_taken_is_named(tformer, toy_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = tformer("serve", toy_run, "--port", port)
    assert result.exit_code == 2
    assert result.stderr == (
        f"127.0.0.1:{port}: cannot be listened on (Address already in use); use another --port\n"
    )


def test_a_host_that_is_no_name_is_named(tformer, toy_run):
    result = tformer("serve", toy_run, "--host", "a..b")
    assert result.exit_code == 2
    assert result.stderr.startswith("a..b:8000: cannot be listened on (")
    assert result.stderr.endswith("; use another --host\n")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--allow-host", "a.example:80", "is no host name"),
        ("--allow-host", "https://a.example", "is no host name"),
        ("--allow-host", "*", "is no host name"),
        ("--allow-origin", "a.example", "is no site"),
        ("--allow-origin", "https://a.example/page", "is no site"),
        ("--allow-origin", "*", "is no site"),
    ],
)
def test_what_no_header_has_is_not_allowed(tformer, toy_run, option, value, said):
    result = tformer("serve", toy_run, "--port", 0, option, value)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{option}: {said} ({value}); write ")


def test_runs_have_different_names(tformer, toy_run):
    result = tformer("serve", toy_run, toy_run, "--port", 0, "--backend", "native")
    assert result.exit_code == 2
    assert result.stderr == (f"{toy_run}: has the name of another run; rename one of the folders\n")


def test_a_run_and_its_keys_must_be_there(tformer, toy_run, tmp_path):
    missing = tformer("serve", tmp_path / "nothing", "--port", 0)
    assert missing.stderr == (
        f"{tmp_path / 'nothing'}: no such run folder; name the folder of a run, such as runs/demo\n"
    )
    keys = tformer("serve", toy_run, "--api-keys", tmp_path / "keys")
    assert keys.exit_code == 2
    assert keys.stderr.startswith(f"{tmp_path / 'keys'}: ")


def test_an_export_whose_search_its_engine_lacks_is_refused_at_once(tformer, toy_run, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    export = tmp_path / "export"
    tformer("export", toy_run, export, "--format", "ctranslate2")
    search = BeamConfig(beam_size=3, no_repeat_ngram_size=4, max_length=20)
    save_decoding(export / "config.yaml", search)
    result = tformer("serve", export, "--port", "0")
    assert (result.exit_code, result.stderr) == (
        2,
        "decoding.no_repeat_ngram_size: has no exact counterpart in CTranslate2 (4); "
        "use the run with --backend native, or set it to 0\n",
    )


def test_help_loads_no_server():
    code = (
        "import sys; sys.argv = ['tformer', 'serve', '--help']\n"
        "from tformer_cli.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('starlette', 'uvicorn', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
