"""A head, a backbone and a readout in a user's own file go everywhere: trained, evaluated, fitted, exported, served,
published, without touching the package. The file is the one that docs/extending.md shows."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.shell import check_words
from helpers.shell import exit_code as run
from PIL import Image

from anyshot import BadInput, FewShotClassifier, ImageClassifier
from anyshot.data.store import open_store
from anyshot.models.model import load_model
from anyshot.models.registry import BUILTIN, load_registry
from anyshot.tables import read_table

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The study of the page, small, run by its file."""
    folder = tmp_path_factory.mktemp("own")
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (folder / "my_study.py").write_text(code)
    words = ["study", folder / "my_study.py", "--out", folder / "out", "--data", folder / "data", "--workers", "1"]
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, *words) == 0
    return folder


def test_the_head_takes_few_lines():
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    head = code[code.index("def start(") : code.index("# A backbone")]
    assert len([line for line in head.splitlines() if line.strip() and not line.strip().startswith("#")]) <= 25


def test_the_study_has_every_setting_in_every_table(trained, monkeypatch):
    """Two data sets and two backbones, published: none is lost, in any table."""
    published = trained / "published"
    words = ["publish", trained / "my_study.py", "-o", published, "--run", trained / "out", "--data", trained / "data"]
    assert run(monkeypatch, *words) == 0
    settings = {(data, backbone) for data in ("glyphs-a", "glyphs-b") for backbone in ("conv4", "patches")}
    for table in ("table", "sensitivity", "gains", "offsets", "unequal", "unequal-gains", "unequal-recall", "learned"):
        rows = read_table(published / f"{table}.csv")
        assert {(row["data"], row["backbone"]) for row in rows} == settings, table
    page = (published / "README.md").read_text(encoding="utf-8")
    for data, backbone in settings:
        assert f"| {data}/{backbone} | trusting | own |" in page
    for command in re.findall("`(anyshot .*?)`", page):
        check_words(command)
    assert "`anyshot study my_study.py`" in page, "a study of the user's is named by its file"
    gains = read_table(published / "gains.csv")
    assert {row["head"] for row in gains} == {"trusting"}
    assert {row["against"] for row in gains} == {"proto"}


def model_of(folder: Path, backbone: str = "patches") -> Path:
    return min((folder / "out").glob(f"glyphs-a-{backbone}-trusting-4shot-*"))


def test_a_model_names_the_file_it_needs(trained):
    with pytest.raises(BadInput, match=r"--using my_study\.py"):
        load_model(model_of(trained))
    model = load_model(model_of(trained), load_registry(trained / "my_study.py"))
    assert model.recipe.backbone == "patches"
    assert "doubt" in model.learned, "the learned vector came along"


def test_evaluate_reads_it_with_the_readout_of_the_same_file(trained, monkeypatch, capsys, tmp_path):
    store, model = trained / "data" / "glyphs-a", model_of(trained)
    words = ["evaluate", store, "--model", model, "--shots", 1, 4, "--queries", 4, "--episodes", 40, "-o", tmp_path]
    assert run(monkeypatch, *words) == 2
    assert "--using my_study.py" in capsys.readouterr().err
    using = ["--using", trained / "my_study.py", "--heads", "trusting", "proto", "--readouts", "own", "whitened"]
    assert run(monkeypatch, *words, *using) == 0
    rows = read_table(tmp_path / "table.csv")
    assert {(row["head"], row["readout"]) for row in rows} == {
        ("trusting", "own"), ("trusting", "whitened"), ("proto", "own"), ("proto", "whitened"),
    }  # fmt: skip


def test_fit_predict_export_and_load(trained, monkeypatch, capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    import onnxruntime

    part = open_store(trained / "data" / "glyphs-a").part("test")
    for name in range(3):
        for number, image in enumerate(part.items[part.labels == name][:4]):
            (tmp_path / "photos" / str(name)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0]).save(tmp_path / "photos" / str(name) / f"{number}.png")
    using = ["--using", trained / "my_study.py"]
    out = tmp_path / "classifier"
    assert run(monkeypatch, "fit", tmp_path / "photos", "--model", model_of(trained), "-o", out, *using) == 0
    assert run(monkeypatch, "predict", out, tmp_path / "photos" / "0" / "0.png") == 2
    assert "--using my_study.py" in capsys.readouterr().err
    assert run(monkeypatch, "predict", out, tmp_path / "photos" / "0" / "0.png", *using) == 0
    assert run(monkeypatch, "export", out, "-o", tmp_path / "classifier.onnx", *using) == 0
    classifier = ImageClassifier.load(out, registry=load_registry(trained / "my_study.py"))
    pixels = classifier.read(tmp_path / "photos" / "1" / "0.png")
    session = onnxruntime.InferenceSession(tmp_path / "classifier.onnx")
    grey = np.float32(pixels[..., :1]).transpose(2, 0, 1)[None]
    logits = session.run(["logits"], {"images": grey})[0]
    expected = classifier.classifier.logits(classifier.features(pixels[None]))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    # Classes of unequal counts are not scored alike: the exported file knows the counts.
    counts = np.array([1, 9, 9])
    moved = session.run(["logits"], {"images": grey, "counts": counts})[0]
    assert not np.allclose(moved, logits)


def test_serving_opens_it(trained, tmp_path):
    testclient = pytest.importorskip("fastapi.testclient")
    from anyshot.serve.app import make_app
    from anyshot.serve.run import open_classifier
    from anyshot.serve.state import ServedClassifier

    shelf = ServedClassifier(open_classifier(str(model_of(trained)), load_registry(trained / "my_study.py")), None)
    with testclient.TestClient(make_app(shelf, ("testserver",))) as client:
        assert client.get("/").status_code == 200


def test_a_classifier_of_features_with_a_head_of_ones_own(trained):
    registry = load_registry(trained / "my_study.py")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, 6)) + np.repeat(np.eye(6)[:4], 6, 0), np.repeat(np.arange(4), 6)
    fitted = FewShotClassifier("trusting", registry=registry).fit(X, y)
    assert fitted.score(X, y) > 0.5
    with pytest.raises(BadInput, match="no head named 'trusting'"):
        FewShotClassifier("trusting").fit(X, y)


def test_nothing_of_a_users_file_runs_unless_it_is_named(trained):
    assert "trusting" not in BUILTIN.heads
    code = (
        "import sys; from pathlib import Path; from anyshot.models.model import load_model\n"
        f"try: load_model(Path({str(model_of(trained))!r}))\nexcept ValueError: pass\n"
        "assert not [name for name in sys.modules if 'my_study' in name]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=trained)
