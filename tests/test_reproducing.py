"""The page on the paper's prescriptions names files and names that exist, and a state for each."""

import re
from pathlib import Path

import pytest

from anyshot.errors import BadInput
from anyshot.study.runner import run_study
from anyshot.study.study import StudySource, find_study, list_pretrainings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| prescription")
]


def test_the_page_has_the_prescriptions():
    assert len(ROWS) >= 45


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_prescription_names_what_exists(row):
    _, here, state = row
    file, *names = re.findall("`(.+?)`", here)
    text = (ROOT / file).read_text(encoding="utf-8")
    assert names
    for name in names:
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), f"{file} has no {name}"
    assert re.match("matches|choice|deviates: ", state), state


def test_old_and_new_frn_are_trained_alike():
    recipes = StudySource(find_study("paper-frn")).load().recipes
    assert {(each.data, each.backbone, each.head) for each in recipes} == {
        ("meta-inat", "conv4", "frn"),
        ("meta-inat", "conv4", "frn-old"),
    }
    own = {each.id for each in StudySource(find_study("paper")).load().recipes}
    assert {each.id in own for each in recipes if each.head == "frn"} == {True}, "models of the paper's study"


def test_feat_with_and_without_layernorm_differ_in_that_alone():
    recipes = StudySource(find_study("paper-feat")).load().recipes
    assert len(recipes) == 3 * 4 * 4
    assert {each.head for each in recipes if each.layer_norm} == {"feat-norm", "cosine-feat-norm"}


@pytest.mark.parametrize(
    ("only", "sentence"),
    [("mini/frn", r"weights/frn-mini\.pth.*mini-resnet12-frn"), ("cub", "there is no store .*cub")],
)
def test_only_the_weights_that_chosen_models_begin_with_are_asked_for(only, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=sentence):
        run_study(StudySource(find_study("paper-authors")), tmp_path / "out", tmp_path / "data", only)


def test_models_that_begin_with_the_authors_weights():
    recipes = StudySource(find_study("paper-authors")).load().recipes
    assert len(recipes) == 4 * (2 * 4 + 2)
    frns = [each for each in recipes if "frn" in each.head]
    assert all(each.start_scale and each.backbone == "resnet12" for each in frns)
    feats = [each for each in recipes if "feat" in each.head and each.data != "cub"]
    assert {(each.backbone, each.start_scale) for each in feats} == {("resnet12-feat", False)}
    assert {each.start for each in frns + feats} == {
        f"weights/{family}-{data}.pth" for family in ("frn", "feat") for data in ("mini", "tiered")
    }
    assert [each.head for each in list_pretrainings(recipes)] == ["plain-linear"]
