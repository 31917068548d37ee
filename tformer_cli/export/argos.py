"""Argos Translate's packages (.argosmodel), read and written.

A package is a zip of one folder: metadata.json, sentencepiece.model of both languages, and `model/`
for CTranslate2.
"""

import lzma
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.errors import CheckpointError, ConfigError, Problem, TformerError
from tformer_cli.export.converted import VOCABULARY_FILES
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.ctranslate2_engine import CTranslate2Engine
from tformer_cli.export.ctranslate2_import import read_ctranslate2
from tformer_cli.export.format import filled, no_language_tokens, sentencepiece_models
from tformer_cli.export.settings import SETTINGS_FILE, json_object
from tformer_cli.storage.atomic import storage_errors, write_json
from tformer_cli.storage.run_directory import EXPORT_FILE
from tformer_cli.storage.trained_model import TrainedModel

SUFFIX = ".argosmodel"
METADATA_FILE = "metadata.json"
MODEL_FOLDER = "model"
TOKENIZER_FILE = "sentencepiece.model"
# What a package's folder for CTranslate2 has.
MODEL_FILES = (EXPORT_FILE, SETTINGS_FILE, *dict.fromkeys(sum(VOCABULARY_FILES, ())))
PACKAGE_VERSIONS = {"package_version": "1.0", "argos_version": "1.9"}
FETCH_AGAIN = "fetch the package again"
# What zipfile raises, also from within the compressions.
DAMAGE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError)
# Weights hardly compress; what grows more than this would fill the disk.
MAX_GROWTH = 100


class ArgosFormat(CTranslate2Format):
    """A package that Argos Translate installs, checked by CTranslate2 out of the package.

    Argos searches with a beam of four and a length penalty of 0.2, and adds no normalization.
    """

    program: ClassVar = "Argos Translate"

    def unsupported(self, trained: TrainedModel) -> Iterator[Problem]:
        yield from super().unsupported(trained)
        tokenizers = trained.tokenizers
        if tokenizers.source.kind == "m2m":
            yield no_language_tokens("an Argos package", "ctranslate2")
        if len(set(sentencepiece_models(tokenizers).values())) != 1:
            what = "must be subwords that both languages share, in an Argos package"
            sharing = "shared" if tokenizers.shared else "not shared"
            yield Problem("tokenizer.shared", what, f"{tokenizers.source.kind}, {sharing}")
        for name in ("lowercase", "nfkc"):
            if getattr(tokenizers.source.normalizer, name):
                yield Problem(f"tokenizer.{name}", "must be none in an Argos package", "source")
        # Argos writes nothing in front of a source.
        data, remedy = trained.config.data, 'use `format="ctranslate2"`'
        if data.prefixes is not None:
            prefixes = ", ".join(data.prefixes.values())
            yield Problem("data.prefixes", "must be null in an Argos package", prefixes, remedy)
        elif len(data.targets) > 1:
            what = "must be of one target language in an Argos package"
            yield Problem("data.train", what, ", ".join(data.targets), remedy)

    def write(self, trained: TrainedModel, folder: Path) -> None:
        data = trained.config.data
        source, target = data.source_language, data.target_language
        names = {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
        package = package_file(trained, folder)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            root = Path(temporary, package.stem)
            model = root / MODEL_FOLDER
            model.mkdir(parents=True)
            super().write(trained, model)
            for path in model.iterdir():
                if path.name not in MODEL_FILES:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            (content,) = set(sentencepiece_models(trained.tokenizers).values())
            (root / TOKENIZER_FILE).write_bytes(content)
            write_json(root / METADATA_FILE, PACKAGE_VERSIONS | {"type": "translate"} | names)
            with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(root.rglob("*")):
                    archive.write(path, path.relative_to(temporary))

    def engine(self, trained: TrainedModel, folder: Path) -> CTranslate2Engine:
        temporary = tempfile.TemporaryDirectory()
        _extract(package_file(trained, folder), Path(temporary.name))
        config = trained.config.model
        engine = CTranslate2Engine(
            Path(temporary.name), config, trained.tokenizers, self.quantization
        )
        weakref.finalize(engine, temporary.cleanup)
        return engine

    def searches(self, own: DecodingConfig) -> list[DecodingConfig]:
        beam = BeamConfig(beam_size=4, length_penalty=0.2, max_length=own.max_length)
        return [GreedyConfig(max_length=own.max_length), beam]

    def example(self, trained: TrainedModel, line: str) -> str:
        data = trained.config.data
        return filled(
            "argos.py.txt",
            file=repr(package_file(trained, Path()).name),
            line=repr(line),
            source=repr(data.source_language),
            target=repr(data.target_language),
        )

    def packages(self, trained: TrainedModel) -> list[str]:
        return ["argostranslate"]


def package_file(trained: TrainedModel, folder: Path) -> Path:
    """Return the package in a folder, by the name that Argos gives it."""
    data = trained.config.data
    return folder / f"translate-{data.source_language}_{data.target_language}-1_0{SUFFIX}"


def read_argos(
    file: Path, *, source_language: str | None = None, target_language: str | None = None
) -> TrainedModel:
    """Return the model of a package. Arguments and errors are those of `import_run`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            metadata = _extract(file, folder)
            trained = read_ctranslate2(
                folder,
                source_language=source_language or str(metadata.get("from_code", "source")),
                target_language=target_language or str(metadata.get("to_code", "target")),
            )
        except TformerError as error:
            # The folder is gone when the message is read.
            inside = [replace(x, where=x.where.replace(name, str(file))) for x in error.problems]
            raise ConfigError(inside) from None
    return trained


def _wanted(archive: zipfile.ZipFile, file: Path) -> dict[str, str]:
    """Return the names in the folder for CTranslate2, by those in a package, of what it needs."""
    names = archive.namelist()
    roots = [x for x in names if x.count("/") == 1 and x.endswith(f"/{METADATA_FILE}")]
    if len(roots) != 1:
        what = f"has no {METADATA_FILE} in one folder"
        raise CheckpointError(str(file), what, remedy=FETCH_AGAIN)
    root = roots[0].removesuffix(METADATA_FILE)
    if f"{root}bpe.model" in names and f"{root}{TOKENIZER_FILE}" not in names:
        what = "has a tokenizer of another kind than sentencepiece"
        remedy = "name a package with a sentencepiece.model"
        raise CheckpointError(str(file), what, got="bpe.model", remedy=remedy)
    wanted = {f"{root}{x}": x for x in (METADATA_FILE, TOKENIZER_FILE)}
    wanted |= {f"{root}{MODEL_FOLDER}/{x}": x for x in MODEL_FILES}
    wanted = {name: x for name, x in wanted.items() if name in names}
    # No more of a file than this is unpacked.
    size = sum(archive.getinfo(name).file_size for name in wanted)
    if size > MAX_GROWTH * file.stat().st_size:
        what = f"unpacks to more than {MAX_GROWTH} times its size"
        raise CheckpointError(str(file), what, got=f"{size:,} bytes", remedy=FETCH_AGAIN)
    return wanted


def _extract(file: Path, folder: Path) -> dict[str, Any]:
    """Write a package's files for CTranslate2 into a folder; return its metadata."""
    try:
        with zipfile.ZipFile(file) as archive:
            wanted = _wanted(archive, file)
            for name in wanted:
                with (
                    archive.open(name) as content,
                    storage_errors(folder),
                    (folder / wanted[name]).open("wb") as copy,
                ):
                    shutil.copyfileobj(content, copy)
    except DAMAGE as error:
        what = "is no zip file, or is damaged"
        raise CheckpointError(str(file), what, got=str(error), remedy=FETCH_AGAIN) from None
    metadata = json_object(folder / METADATA_FILE)
    (folder / METADATA_FILE).unlink()
    for key, value in (("type", "translate"), ("target_prefix", "")):
        if metadata.get(key, value) != value:
            where = f"{file}: {METADATA_FILE}: {key}"
            raise CheckpointError(where, f"must be {value or 'empty'}", got=str(metadata[key]))
    if not (folder / EXPORT_FILE).is_file():
        what = f"has no {MODEL_FOLDER}/{EXPORT_FILE}"
        raise CheckpointError(str(file), what, remedy=FETCH_AGAIN)
    return metadata
