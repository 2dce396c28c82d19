"""Files in the layouts of FRN's and FEAT's authors are read as models, with their preprocessing."""

import numpy as np
import pytest
import torch
from helpers.own_study import recipe
from helpers.shell import exit_code
from torch import nn

from anyshot.errors import BadInput
from anyshot.models.backbones import drop_blocks
from anyshot.models.model import load_model
from anyshot.models.registry import BUILTIN
from anyshot.train.training import Learner


class TheirBlock(nn.Module):
    """A residual block with the names of FRN's and FEAT's code."""

    def __init__(self, channels, width):
        super().__init__()
        for number in (1, 2, 3):
            setattr(self, f"conv{number}", nn.Conv2d(channels if number == 1 else width, width, 3, 1, 1, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(width))
        self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        out, relu = x, nn.LeakyReLU(0.1)
        for number in (1, 2, 3):
            out = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(out))
            out = relu(out) if number < 3 else relu(out + self.downsample(x))
        return nn.functional.max_pool2d(out, 2)


def their_resnet():
    sizes = (3, 64, 160, 320, 640)
    return nn.ModuleDict({f"layer{i}": nn.Sequential(TheirBlock(sizes[i - 1], sizes[i])) for i in (1, 2, 3, 4)})


def their_conv4(wrap):
    """Four blocks; FRN wraps convolution and norm and counts ReLU and pooling, FEAT has all four in a block."""
    blocks = []
    for channels in (3, 64, 64, 64):
        pair = (nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64))
        if wrap:
            blocks += [nn.ModuleDict({"layers": nn.Sequential(*pair)}), nn.ReLU(), nn.MaxPool2d(2)]
        else:
            blocks.append(nn.Sequential(*pair, nn.ReLU(), nn.MaxPool2d(2)))
    return nn.Sequential(*blocks)


def state(network, prefix):
    """Its state with statistics that are not those of a fresh network."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    return {prefix + name: value for name, value in network.state_dict().items()}


def frn_file(path, network=None, prefix="feature_extractor."):
    more = {"scale": torch.tensor([3.5]), "r": torch.tensor([0.25, -0.5]), "cat_mat": torch.randn(64, 25, 640)}
    torch.save(state(network or their_resnet(), prefix) | more, path)
    return path


def feat_file(path, network=None, prefix="encoder."):
    fc = nn.Linear(640, 64).state_dict()
    torch.save({"params": state(network or their_resnet(), prefix) | {f"fc.{k}": v for k, v in fc.items()}}, path)
    return path


def their_pixels(images, mean, deviation):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    return (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(3, 1, 1)


@pytest.mark.parametrize("whose", ["frn", "feat"])
def test_features_are_those_of_their_network_on_their_pixels(whose, tmp_path):
    network = their_resnet().eval()
    path = (frn_file if whose == "frn" else feat_file)(tmp_path / "model.pth", network)
    model = load_model(path)
    images = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 3), np.uint8)
    if whose == "frn":
        x = their_pixels(images, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    else:
        means, deviations = (120.39586422, 115.59361427, 104.54012653), (70.68188272, 68.27635443, 72.54505529)
        x = their_pixels(images, [m / 255 for m in means], [d / 255 for d in deviations])
    with torch.no_grad():
        for number in (1, 2, 3, 4):
            x = network[f"layer{number}"](x)
    expected = x.flatten(2).mT / (640**0.5 if whose == "frn" else 1)
    torch.testing.assert_close(torch.from_numpy(model.features(images)), expected, rtol=1e-3, atol=1e-4)


def test_the_numbers_that_frn_learned_come_along(tmp_path):
    model = load_model(frn_file(tmp_path / "model.pth"))
    learned = {name: value.item() for name, value in model.learned.items()}
    assert (model.recipe.head, model.recipe.way) == ("frn-old", 64)
    assert learned == pytest.approx({"scale": 3.5, "alpha": 0.25, "beta": -0.5})


@pytest.mark.parametrize(("wrap", "write", "embed"), [(True, frn_file, None), (False, feat_file, "max")])
def test_conv4_of_both_is_read(wrap, write, embed, tmp_path):
    theirs = their_conv4(wrap)
    prefix = "module.feature_extractor.layers." if wrap else "encoder."
    model = load_model(write(tmp_path / "model.pth.tar", theirs, prefix))
    assert (model.recipe.backbone, model.recipe.embed) == ("conv4", embed)
    convs = [module for module in theirs.modules() if isinstance(module, nn.Conv2d)]
    for ours, one in zip(model.backbone.convs, convs, strict=True):
        assert torch.equal(ours.weight, one.weight)


def test_a_training_begins_with_their_file(tmp_path):
    path = frn_file(tmp_path / "model.pth")
    common = {"backbone": "resnet12", "width": 64, "size": 84, "start": str(path)}
    start = load_model(path)
    for takes, scale in ((False, 1.0), (True, 3.5)):
        learner = Learner(recipe("frn", start_scale=takes, **common), BUILTIN, 3, "cpu", start)
        assert torch.equal(learner.model.backbone.blocks[3].convs[2].weight, start.backbone.blocks[3].convs[2].weight)
        assert learner.model.learned["scale"].item() == scale


def test_drop_blocks_grow_anew_in_finetuning(tmp_path):
    """FEAT's code counts batches from the start of a training, not from that of the pretraining."""
    start = load_model(feat_file(tmp_path / "model.pth"))
    start.backbone.blocks[2].norms[0].num_batches_tracked.fill_(40_000)
    learner = Learner(recipe("feat", backbone="resnet12-feat", width=64, size=84), BUILTIN, 3, "cpu", start)
    assert learner.model.backbone.blocks[2].norms[0].num_batches_tracked == 0
    assert torch.equal(
        learner.model.backbone.blocks[2].norms[0].running_var, start.backbone.blocks[2].norms[0].running_var
    )


def test_the_verb_makes_a_model_of_it(tmp_path, monkeypatch, capsys):
    path = feat_file(tmp_path / "max_acc.pth")
    assert exit_code(monkeypatch, "convert", path, "-o", tmp_path / "feat") == 0
    assert "resnet12-feat" in capsys.readouterr().out
    assert torch.equal(
        load_model(tmp_path / "feat").backbone.blocks[0].convs[0].weight,
        load_model(path).backbone.blocks[0].convs[0].weight,
    )


class Evil:
    def __reduce__(self):
        return print, ("this code ran",)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"params": {"encoder.layer1.0.conv1.weight": torch.ones(64, 3, 3, 3)}}, "does not hold the weights"),
        ({"encoder.layer9.0.conv1.weight": torch.ones(1)}, "does not have the Conv-4 or ResNet-12"),
        ({"weights": torch.ones(3)}, "does not have the Conv-4 or ResNet-12"),
        ([1, 2], "does not have the Conv-4 or ResNet-12"),
        (Evil(), "is damaged, or not a file of weights that torch wrote."),
    ],
)
def test_other_files_are_one_sentence_and_their_code_does_not_run(content, sentence, tmp_path, capsys):
    torch.save(content, tmp_path / "model.pth")
    with pytest.raises(BadInput, match=sentence):
        load_model(tmp_path / "model.pth")
    assert "this code ran" not in capsys.readouterr().out


def test_a_file_cut_short_is_one_sentence(tmp_path):
    path = frn_file(tmp_path / "model.pth")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BadInput, match="is damaged"):
        load_model(path)


def test_drop_blocks_drops_whole_squares_of_about_their_share():
    torch.manual_seed(0)
    x = drop_blocks(torch.ones(64, 8, 10, 10), torch.tensor(0.1), 5)
    dropped = (x == 0).float()
    assert 0.05 < dropped.mean() < 0.12  # squares overlap, so a little less than their share
    assert x.mean() == pytest.approx(1)
    # Every dropped position lies in a dropped square.
    squares = nn.functional.avg_pool2d(dropped, 5, 1) == 1
    covered = nn.functional.max_pool2d(nn.functional.pad(squares.float(), [4] * 4), 5, 1)
    assert torch.equal(covered, dropped)
    small = drop_blocks(torch.ones(64, 8, 5, 5), torch.tensor(0.1), 5)
    assert set(small.flatten(2).eq(0).float().mean(-1).unique().tolist()) == {0.0, 1.0}, "whole channels of 5x5"
