"""Options that make models fit data."""

import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab import models
from slimgrad.lab.models.fitting import fitting

SMALLER = {"vgg16": {"width": 0.125}, "vgg16_bn": {"width": 0.125}, "resnet50": {"width": 0.125}}
OF_IMAGES = [name for name in models.names() if name not in ("gpt", "lstm", "unet3d")]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_every_model_of_images_takes_small_grey_ones(name: str) -> None:
    model = models.build(name, **{**fitting(name, (1, 32, 32), 7), **SMALLER.get(name, {})}).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 1, 32, 32)).shape[:2] == (2, 7)


def test_large_images_keep_the_stem_of_imagenet() -> None:
    assert fitting("resnet50", (3, 224, 224), 1000) == {"classes": 1000, "in_channels": 3}
    assert fitting("resnet50", (3, 32, 32), 10)["stem"] == "small"


def test_a_small_gpt_reads_text_and_an_lstm_reads_rows() -> None:
    options = fitting("gpt", (64,), 256)
    assert (options["classes"], options["context"], options["width"]) == (256, 64, 128)
    assert "width" not in fitting("gpt", (1024,), 256)
    assert fitting("lstm", (1, 28, 28), 10) == {"classes": 10, "features": 28}


def test_a_model_of_the_user_is_taken_as_it_is() -> None:
    assert fitting("own.nets:unet", (1, 32, 32), 10) == {}


@pytest.mark.parametrize(
    ("name", "shape", "words"), [("gpt", (3, 8, 8), "--data sotu"), ("vit", (64,), "images, such as")]
)
def test_text_and_images_are_not_mixed_up(name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fitting(name, shape, 10)
