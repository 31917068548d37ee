import math

import torch

from tformer_cli.config.schema.model import LearnedPositions, SinusoidalPositions
from tformer_cli.model.positions import SinusoidalEncoding, build_positions


def test_sinusoidal_encoding_follows_the_formula():
    dim = 6
    encoding = SinusoidalEncoding(dim)(torch.arange(13))
    for position in range(13):
        for i in range(dim // 2):
            angle = position / 10000 ** (2 * i / dim)
            assert math.isclose(encoding[position, 2 * i], math.sin(angle), abs_tol=1e-6)
            assert math.isclose(encoding[position, 2 * i + 1], math.cos(angle), abs_tol=1e-6)


def test_sinusoidal_encoding_depends_on_the_position_alone():
    encoding = SinusoidalEncoding(8)
    in_rows = encoding(torch.tensor([[3, 1], [0, 3]]))
    torch.testing.assert_close(in_rows[0, 0], in_rows[1, 1])
    torch.testing.assert_close(in_rows[0, 1], encoding(torch.arange(5))[1])


def test_build_positions_says_how_long_a_sentence_may_be():
    assert build_positions(SinusoidalPositions(), 8).max_length is None
    learned = build_positions(LearnedPositions(max_length=17), 8)
    assert learned.max_length == 17
    assert learned.absolute(torch.tensor([16])).shape == (1, 8)
