"""Backbones: the paper's parameter counts and maps, equal to their textbook form, and golden numbers for tiny ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anyshot import BadInput
from anyshot.models.backbones import Conv4, ResNet12
from anyshot.models.model import Model, load_model, read_tensors
from anyshot.recipe import Recipe


@pytest.mark.parametrize(("kind", "count", "channel"), [(Conv4, 113_088, 64), (ResNet12, 12_424_320, 640)])
def test_parameters_and_maps_are_the_papers(kind, count, channel):
    backbone = kind()
    assert sum(p.numel() for p in backbone.parameters()) == count
    assert backbone.eval()(torch.zeros(1, 3, 84, 84)).shape == (1, 25, channel)


@pytest.mark.parametrize(("size", "channels", "positions"), [(28, 1, 1), (32, 3, 4), (100, 2, 36)])
def test_conv4_takes_any_size_and_channels(size, channels, positions):
    assert Conv4(channels, 8)(torch.zeros(2, channels, size, size)).shape == (2, positions, 8)


def test_resnet12_of_half_the_width_has_half_the_channels_everywhere():
    whole, half = ResNet12(), ResNet12(3, 32)
    assert half(torch.zeros(2, 3, 32, 32)).shape == (2, 4, 320)
    for one, other in zip(whole.blocks, half.blocks, strict=True):
        assert one.norms[0].num_features == 2 * other.norms[0].num_features


def test_conv4_says_when_an_image_is_too_small():
    with pytest.raises(BadInput, match="at least 16x16"):
        Conv4()(torch.zeros(1, 3, 15, 40))


def test_pooling_first_changes_nothing():
    torch.manual_seed(0)
    backbone = Conv4(3, 8)
    images = torch.randn(4, 3, 32, 32)
    expected = images
    for conv, norm in zip(backbone.convs, backbone.norms, strict=True):
        expected = F.max_pool2d(F.relu(F.batch_norm(conv(expected), None, None, norm.weight, norm.bias, True)), 2)
    torch.testing.assert_close(backbone(images), expected.flatten(2).mT)


@pytest.mark.parametrize(("backbone", "width"), [("conv4", 8), ("resnet12", 64)])
def test_folded_batch_norm_embeds_alike_and_a_saved_model_is_the_same(backbone, width, tmp_path):
    torch.manual_seed(0)
    recipe = Recipe(data="none", head="cosine-proto", train_shot=4, way=4, backbone=backbone, size=16, width=width)
    model = Model(recipe, 3).train()
    with torch.no_grad():
        model(torch.randn(4, 3, 16, 16))  # batch norm now has a mean and a variance that are not 0 and 1
    images = np.random.default_rng(0).integers(0, 256, size=(3, 16, 16, 3), dtype=np.uint8)
    from anyshot.data.augmentation import prepare_evaluation

    model.eval()
    with torch.no_grad():
        plain = model(prepare_evaluation(torch.from_numpy(images), 16)).numpy()
    np.testing.assert_allclose(model.features(images), plain, rtol=1e-3, atol=1e-4)
    model.save(tmp_path / "model.safetensors")
    again = load_model(tmp_path)
    assert again.recipe == recipe
    np.testing.assert_array_equal(again.features(images), model.features(images))


def test_a_truncated_model_gets_a_sentence(tmp_path):
    recipe = Recipe(data="none", head="proto", train_shot=4, way=4, size=16, width=2)
    Model(recipe, 1).save(tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="cut short"):
        load_model(tmp_path)
    with pytest.raises(BadInput, match="there is neither a classifier nor a trained model"):
        load_model(tmp_path / "nowhere")


def test_models_that_come_with_anyshot_have_names(tmp_path):
    named = load_model(Path("cub32-conv4-cosine-proto-16shot"))
    assert (named.recipe.data, named.recipe.head, named.recipe.train_shot) == ("cub32", "cosine-proto", 16)
    run = tmp_path / named.recipe.name  # as a run of `--ready` leaves it: no weights
    run.mkdir()
    assert load_model(run).recipe == named.recipe


@pytest.mark.parametrize(("have", "want"), [(1, 3), (3, 1), (3, 3)])
def test_grey_and_colour_images_are_read_by_models_of_either(have, want):
    model = Model(Recipe(data="none", head="proto", train_shot=4, way=4, size=16, width=2), want)
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, have), np.uint8)
    grey = np.round(images @ np.array([0.299, 0.587, 0.114]))[..., None].astype(np.uint8) if have == 3 else images
    same = {(1, 3): images.repeat(3, 3), (3, 1): grey, (3, 3): images}[have, want]
    np.testing.assert_array_equal(model.features(images), model.features(same))


def test_golden_numbers():
    """A change that should not move numbers does not; one that should says so here."""
    torch.manual_seed(0)
    features = Conv4(1, 4)(torch.sin(torch.arange(2 * 784.0)).view(2, 1, 28, 28))
    expected = torch.tensor([[1.61514, 1.02329, 0.33363, 1.86207], [1.42964, 1.48831, 0.49798, 2.13427]])
    torch.testing.assert_close(features[:, 0], expected, atol=1e-4, rtol=0)


def test_equal_models_are_equal_bytes(tmp_path):
    """safetensors writes a file's words in any order; we write them in one."""
    recipe = Recipe(data="none", head="proto", train_shot=4, way=4, size=16, width=2)
    model = Model(recipe, 1)
    for name in ("one", "two"):
        model.made_with = "mine.py"
        model.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    loaded, about = read_tensors(tmp_path / "one")
    assert set(about) == {"recipe", "channels", "made_with"}
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded[name], value)
