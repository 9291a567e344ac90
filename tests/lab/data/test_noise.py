"""Random data."""

import torch

from slimgrad.lab.data.noise import RandomExamples


def test_images_have_one_target_each_or_one_per_pixel() -> None:
    assert RandomExamples((3, 6, 4)).batch(0, 2, 0).y.shape == (2,)
    x, y = RandomExamples((3, 6, 4), classes=4, per_place=True).batch(0, 2, 0)
    assert x.shape == (2, 3, 6, 4)
    assert y.shape == (2, 6, 4)
    assert int(y.max()) < 4


def test_the_target_of_a_token_is_the_next() -> None:
    x, y = RandomExamples((9,)).batch(0, 2, 0)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_what_is_held_out_is_never_trained_on() -> None:
    source = RandomExamples((3, 4, 4))
    trained = {float(source.batch(step, 2, 0).x[0, 0, 0, 0]) for step in range(10)}
    assert not trained & {float(pair.x[0, 0, 0, 0]) for pair in source.held_out(2)}
