"""The shipped images."""

from importlib import resources

import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab.data.embedded import Images, batches, fashion_mnist


@pytest.mark.parametrize(("split", "per_class"), [("train", 500), ("test", 100)])
def test_images_are_balanced_and_scaled(split: str, per_class: int) -> None:
    images = fashion_mnist(split)
    assert images.x.shape == (10 * per_class, 1, 28, 28)
    assert images.x.dtype == torch.float32
    assert (float(images.x.min()), float(images.x.max())) == (0.0, 1.0)
    assert images.y.bincount().tolist() == [per_class] * 10


def test_an_unknown_split_says_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="expected split 'train' or 'test', got 'validation'"):
        fashion_mnist("validation")


def test_a_pass_uses_every_image_once_and_no_batch_is_short() -> None:
    images = Images(torch.arange(10.0), torch.arange(10))
    picked = [batch.y for batch in batches(images, size=4, steps=5)]
    assert [len(batch) for batch in picked] == [4] * 5
    first_pass = torch.cat(picked[:2])
    assert len(first_pass.unique()) == 8
    assert not torch.equal(first_pass.sort().values, torch.cat(picked[2:4]))  # shuffled anew


def test_batches_depend_on_the_seed_alone() -> None:
    images = fashion_mnist("test")
    torch.manual_seed(1)
    once = [batch.y for batch in batches(images, 50, 3, seed=7)]
    torch.manual_seed(2)
    again = [batch.y for batch in batches(images, 50, 3, seed=7)]
    other = [batch.y for batch in batches(images, 50, 3, seed=8)]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, other, strict=True))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1000 images, got 1001"):
        next(batches(fashion_mnist("test"), 1001, 1))


def test_the_notice_of_the_images_ships_with_them() -> None:
    notice = (resources.files("slimgrad") / "data" / "LICENSE.fashion-mnist").read_text(encoding="utf-8")
    assert "MIT License" in notice
    assert "Zalando SE" in notice
