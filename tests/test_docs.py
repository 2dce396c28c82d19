"""README and docs do what they show: every Python block runs, every command is understood, and all but a few are run.

Each page runs from top to bottom in a folder of its own, in which lies what the page says that a reader has (`HAS`).
Commands that would take minutes or wait for a reader run as smaller ones (`SMALLER`).
"""

import contextlib
import io
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import uvicorn
from helpers.classifiers import pictures, small_model
from helpers.shell import check_words, run
from helpers.training import in_this_process
from torch.utils.flop_counter import FlopCounterMode

from anyshot import ImageClassifier
from anyshot.data.store import write_store
from anyshot.models.model import Model
from anyshot.study import cost, runner
from anyshot.study.study import StudySource, find_study, list_pretrainings
from anyshot.text import group_by

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
RUN_ELSEWHERE = {"docs/extending.md": "models/test_registry.py"}  # pages whose commands another test runs

SMALLER = {
    # README: a study of every learner takes 20 minutes, models of the whole study half a minute.
    "anyshot study quick --heads all": "anyshot study quick --heads all --only 4-shot --workers 1 --dry-run",
    "anyshot study cub32 --ready": "anyshot study cub32 --ready --only cosine-proto/4-shot",
    # README: names that stand for what a reader has.
    "anyshot advise PHOTOS --holdout OTHER_DAYS": "anyshot advise FEATURES.npz --episodes 50",
    "anyshot report runs/quick -o report.html": "anyshot report runs/cub32-ready -o report.html",
    # docs/data.md: the usage of a verb; one worker, so that nothing is measured to choose their number.
    "anyshot pack KIND SOURCE -o STORE": "anyshot pack --help",
    "anyshot study photos.py": "anyshot study photos.py --workers 1",
    # docs/pretrained.md: images that nobody but a reader has.
    "anyshot study birds-pretrained --images cub84.npz": "anyshot study birds-pretrained --dry-run",
    "anyshot study birds-pretrained": "anyshot study --help",
    # docs/deploy.md, docs/quickstart.md, docs/serve.md: any port that is free.
    "anyshot serve signs --save signs": "anyshot serve signs --save signs --port 0",
    "anyshot serve fruit --save fruit": "anyshot serve fruit --save fruit --port 0",
    "anyshot advise photos": "anyshot advise photos --episodes 20",
}
SMALLER_FILES = {'"epochs": 20, "drops": (15,)': '"epochs": 1', "episodes=2000": "episodes=20"}  # written by a page


class Step(NamedTuple):
    """Something a page shows: python, shell, a file it writes, or a command in the middle of a sentence (words)."""

    kind: str
    text: str
    shown: str = ""


def steps(page: str) -> list[Step]:
    """What a page shows, in its order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    listed = []
    for block in re.finditer(r"^```(\w*)\n((?:.*\n)*?)```$|((?:^    .+\n)+)|`(anyshot [^`]+)`", text, re.M):
        language, fenced, indented, inline = block.groups()
        if inline:
            listed.append(Step("words", " ".join(inline.split())))
        elif indented:
            listed += [
                Step("shell", command) for command in re.findall(r"^    (anyshot .+?)(?: {2,}.*)?$", indented, re.M)
            ]
        elif language == "python":
            listed.append(Step("python", fenced))
        elif language == "console":
            listed += [Step("shell", *pair) for pair in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", fenced)]
        elif language == "bash":
            listed += shell_steps(fenced)
        else:
            assert "anyshot" not in fenced, f"{page}: a block of commands must name its language."
    return listed


def shell_steps(script: str) -> list[Step]:
    """The commands of a script, and the files it writes with `cat > FILE <<'END'`."""
    lines = re.findall(r"^cat > (\S+) <<'END'\n((?:.*\n)*?)END$|^(\S.*)$", script.replace("\\\n", " "), re.M)
    return [
        Step("file", text, file) if file else Step("shell", " ".join(re.sub(r"\s#.*", "", command).split()))
        for file, text, command in lines
    ]


# ------------------------------------------------------------------------------------------------ what a reader has


def some_features():
    """Features of 6 classes, 50 each, and their labels."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["coot", "gull", "hawk", "kite", "rook", "wren"], 50)
    return (rng.normal(size=(6, 1, 8)) + rng.normal(size=(6, 50, 8))).reshape(300, 8).astype(np.float32), labels


def for_the_readme(names):
    names["features"], names["labels"] = features, labels = some_features()
    names["grid"] = 70 + np.random.default_rng(1).normal(size=(6, 4))
    np.savez("FEATURES.npz", features=features, labels=labels)
    classes, owners = np.unique(labels, return_inverse=True)
    write_store(Path("STORE"), [features[:, None]], owners, list(classes), ["test"] * 6)
    images = np.random.default_rng(2).integers(0, 256, (48, 32, 32, 3), np.uint8)
    write_store(Path("IMAGES"), [images], np.repeat(np.arange(6), 8), list(classes), ["test"] * 6)
    small_model().save(Path("MODEL/model.safetensors"))
    for folder in ("PHOTOS", "OTHER_PHOTOS", "PICTURES"):
        pictures(Path(folder), classes=[f"class {number}" for number in range(10)], images=3)


def for_images_in(names):
    pictures(Path("photos"), classes=[f"class {number}" for number in range(30)], images=32)
    features, labels = some_features()
    np.savez("clip.npz", features=features, labels=labels)


def for_the_quickstart(names):
    for folder, images in (("photos", 8), ("other-days", 2)):
        pictures(Path(folder), classes=["apple", "lemon", "plum"], images=images)
    Path("new").mkdir()
    shutil.copy(next(Path("other-days/apple").iterdir()), "new/1.jpg")


def for_serving(names):
    small_model().save(Path("MODEL/model.safetensors"))
    ImageClassifier("MODEL").fit(pictures(Path("photos"))).save("fruit")


HAS = {
    "README.md": for_the_readme,
    "docs/data.md": for_images_in,
    "docs/quickstart.md": for_the_quickstart,
    "docs/serve.md": for_serving,
}


# --------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_understood(page):
    for step in steps(page):
        if step.kind in ("shell", "words"):
            check_words(step.text)


@pytest.mark.parametrize("page", [page for page in PAGES if {"python", "shell"} & {step.kind for step in steps(page)}])
def test_every_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    monkeypatch.setattr(cost, "count_cores", lambda: 1)  # one thread, as all tests
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)  # it would wait for someone to stop it
    names = {}
    HAS.get(page, lambda names: None)(names)
    for step in steps(page):
        if step.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(step.text, page, "exec"), names)
        elif step.kind == "file":
            Path(step.shown).write_text(smaller(step.text))
        elif step.kind == "shell" and page not in RUN_ELSEWHERE:
            done = run(SMALLER.get(step.text, step.text), monkeypatch)
            assert done.code == 0, f"{step.text}\n{done.err}"
            pattern = "(?s)" + ".*".join(re.escape(part.strip("\n")) for part in step.shown.split("..."))
            assert re.match(pattern.replace("8000", r"\d+"), done.out), f"{step.text} printed\n{done.out}"


def smaller(text):
    for long, short in SMALLER_FILES.items():
        assert long in text, f"what a page writes has changed: there is no {long} to make smaller."
        text = text.replace(long, short)
    return text


def test_what_is_made_smaller_is_still_on_a_page():
    shown = {step.text for page in PAGES for step in steps(page)}
    assert set(SMALLER) - shown == set()
    assert all((Path(__file__).parent / test).exists() and page in PAGES for page, test in RUN_ELSEWHERE.items())


def test_every_make_target_of_the_readme_exists():
    targets = set(re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), re.M))
    assert targets == {"study", "test"}
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))


def test_the_page_of_gpus_counts_the_images_and_operations_of_the_paper():
    study = StudySource(find_study("paper")).load()
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    recipes = [*study.recipes, *list_pretrainings(study.recipes)]
    for (data, backbone), models in group_by(recipes, lambda recipe: (recipe.data, recipe.backbone)).items():
        train = study.train_images[data][0]
        images = sum(recipe.epochs * (train // recipe.images) * recipe.images for recipe in models)
        model = Model(models[0], 3, study.registry)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, 84, 84))
        operations = 3 * images * counter.get_total_flops()  # a backward pass costs twice its forward pass
        row = re.search(rf"\| {data}/{backbone} \| ([\d +]+) \| (\d+) \| ([\d.]+) \| (\d+) to (\d+) \|", page)
        number, millions, exa, fewest, most = row.groups()
        assert sum(map(int, number.split("+"))) == len(models)
        assert round(images / 1e6) == int(millions)
        assert f"{operations / 1e18:.{len(exa.split('.')[1])}f}" == exa
        slowest, fastest = (5e12, 10e12) if backbone == "conv4" else (40e12, 65e12)
        assert operations / fastest / 3600 == pytest.approx(int(fewest), abs=0.7)
        assert operations / slowest / 3600 == pytest.approx(int(most), abs=0.7)
