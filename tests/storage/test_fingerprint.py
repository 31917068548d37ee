"""What tells one trained model from another."""

from dataclasses import replace

import torch

from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model


def test_the_fingerprint_is_of_all_that_translates_and_of_nothing_else(toy_run):
    run = RunDirectory(toy_run)
    trained, again = load_trained_model(run), load_trained_model(run)
    assert trained.fingerprint == again.fingerprint
    config = trained.config
    searching = replace(config, decoding=replace(config.decoding, max_length=7), seed=9)
    assert replace(trained, config=searching).fingerprint == trained.fingerprint
    # That of the source decides where its terms and its words are.
    for language in ("source_language", "target_language"):
        japanese = replace(config, data=replace(config.data, **{language: "ja"}))
        assert replace(trained, config=japanese).fingerprint != trained.fingerprint
    weight = again.model.decoder.layers[0].feedforward.inner.weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], weight[0, 0] + 1)
    assert again.fingerprint != trained.fingerprint
