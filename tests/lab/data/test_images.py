"""Byte images: normalised, augmented and resized."""

import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab.data.base import Pair, generator
from slimgrad.lab.data.images import PADDING, LabelledImages, augmented, resized


def some(n: int = 40, channels: int = 3, side: int = 8) -> Pair:
    random = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, channels, side, side), generator=random, dtype=torch.uint8)
    x[:, 0] //= 4  # channels differ in mean and spread
    return Pair(x, torch.arange(n) % 5)


def test_every_channel_is_normalised_by_the_training_images() -> None:
    source = LabelledImages("some", some(), some(10))
    x = torch.cat([source.batch(step, 10, seed=0).x for step in range(4)])
    std, mean = torch.std_mean(x, dim=(0, 2, 3))
    torch.testing.assert_close(mean, torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(std, torch.ones(3), atol=1e-3, rtol=0)
    assert (source.shape, source.classes, source.n_train) == ((3, 8, 8), 5, 40)


def test_all_test_images_come_once_in_order_with_a_short_last_batch() -> None:
    held = list(LabelledImages("some", some(), some(10)).held_out(4))
    assert [len(pair.y) for pair in held] == [4, 4, 2]
    assert torch.cat([pair.y for pair in held]).tolist() == [0, 1, 2, 3, 4] * 2


def test_augmented_images_are_crops_of_the_padded_image_or_of_its_mirror() -> None:
    x = some(20).x
    moved = augmented(x, generator(0, 0))
    padded = torch.nn.functional.pad(x, (PADDING,) * 4)
    n_mirrored = 0
    for before, after in zip(padded, moved, strict=True):
        crops = {
            (flip, top, left)
            for top in range(2 * PADDING + 1)
            for left in range(2 * PADDING + 1)
            for flip in (False, True)
            if torch.equal(after.flip(2) if flip else after, before[:, top : top + 8, left : left + 8])
        }
        assert crops
        n_mirrored += all(flip for flip, _, _ in crops)
    assert 0 < n_mirrored < 20


def test_augmentation_changes_training_batches_only() -> None:
    plain, source = LabelledImages("some", some(), some(10)), LabelledImages("some", some(), some(10), augment=True)
    assert not torch.equal(plain.batch(0, 8, 0).x, source.batch(0, 8, 0).x)
    assert torch.equal(next(plain.held_out(8)).x, next(source.held_out(8)).x)
    assert torch.equal(source.batch(3, 8, 1).x, source.batch(3, 8, 1).x)


def test_images_are_framed_or_averaged_to_another_side() -> None:
    x = torch.full((1, 1, 4, 4), 100, dtype=torch.uint8)
    x[..., :2, :2] = 200
    framed = resized(x, 8)
    assert torch.equal(framed[..., 2:6, 2:6], x) and int(framed.sum()) == int(x.sum())
    assert resized(x, 2).tolist() == [[[[200, 100], [100, 100]]]]
    with pytest.raises(ConfigError, match=r"divides 4.*got 3"):
        resized(x, 3)
