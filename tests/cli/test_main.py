"""The command line: quick to answer, one sentence for bad input, nothing half-written."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.shell import exit_code as run
from helpers.shell import list_verbs

from anyshot import FewShotClassifier
from anyshot.cli.main import APP
from anyshot.data.store import write_store
from anyshot.models.model import Model
from anyshot.recipe import Recipe

RNG = np.random.default_rng(0)


@pytest.fixture
def birds(tmp_path) -> Path:
    features = RNG.normal(size=(6, 1, 1, 5)).repeat(30, 1).reshape(180, 1, 5) + RNG.normal(size=(180, 1, 5))
    labels = np.repeat(np.arange(6), 30)
    write_store(tmp_path / "birds", [features.astype(np.float32)], labels, list("abcdef"), ["test"] * 6)
    return tmp_path / "birds"


@pytest.mark.parametrize(
    ("group", "verbs"),
    [([], ["paper", "study", "evaluate", "experiment", "serve"]), (["paper"], ["audit", "tables", "figures"])],
)
def test_help_names_every_verb(monkeypatch, capsys, group, verbs):
    assert run(monkeypatch, *group, "--help") == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in verbs)


def test_evaluate_prints_a_table_and_keeps_it(birds, tmp_path, monkeypatch, capsys):
    words = ["evaluate", birds, "--shots", 1, 4, "--episodes", 50, "--queries", 5]
    assert run(monkeypatch, *words, "--out", tmp_path / "out", "--save-plan", tmp_path / "plan.json") == 0
    printed = capsys.readouterr().out
    assert "cosine-proto" in printed
    assert "new classes" in printed
    assert (tmp_path / "out" / "table.csv").read_text().count("\n") == 5
    assert run(monkeypatch, "evaluate", birds, "--shots", 1, 4, "--plan", tmp_path / "plan.json") == 0
    assert capsys.readouterr().out == printed


def test_what_is_not_known_is_an_empty_cell(birds, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "evaluate", birds, "--shots", 1, "--episodes", 1, "--out", tmp_path / "out") == 0
    assert "nan" not in capsys.readouterr().out
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        assert [(row["ci95"], row["ci95_classes"]) for row in csv.DictReader(file)] == [("", "")] * 2
    assert run(monkeypatch, "report", tmp_path / "out", "--text") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evaluate", "nowhere"], "there is no file or folder nowhere"),
        (["evaluate", "."], "has no images in class folders"),
        (["evaluate", "BIRDS", "--model", "MODEL", "--shots", "1"], "holds features already"),
        (["evaluate", "BIRDS", "--split", "tset"], "did you mean 'test'"),
        (["evaluate", "BIRDS", "--way", "7"], "7 ways does not fit 6 classes"),
        (["evaluate", "BIRDS", "--way", "some"], "number of classes or 'all'"),
        (["evaluate", "BIRDS", "--way", "²"], "number of classes or 'all'"),
        (
            ["evaluate", "BIRDS", "--shots", "20"],
            "largest feasible shot is 14 with 16 queries; 10 would do (queries=10 in Python, --queries 10 of the",
        ),
        (["evaluate", "BIRDS", "--shots", "40"], "give it 56 examples at least, or leave the class out"),
        (["evaluate", "GLYPHS", "--model", "nowhere", "--shots", "1"], "such as efficientnet-lite0; a timm model"),
        (["evaluate", "GLYPHS", "--way", "7"], "7 ways does not fit 2 classes"),
        (["experiment", "consistency", "BIRDS", "MODEL"], "name a store of images"),
        (["experiment", "terms", "GLYPHS"], "at least one trained model"),
        (["experiment", "terms", "GLYPHS", "MODEL"], "the ratio of terms is FRN's"),
        (["fit", "MODEL", "--out", "OUT"], "has no images in class folders"),
        (["evalute", "BIRDS"], 'Unknown command "evalute". Did you mean "evaluate"?'),
        (["ftt"], "export, serve, ... ("),
        (["paper", "audti"], 'Unknown command "audti". Did you mean "audit"?'),
        (["experiment", "xyz"], "Available commands: consistency, terms, compare"),
        (["fit"], "anyshot fit needs SOURCE (`anyshot fit --help` says more)"),
        (["experiment", "terms", "--episodes", "3"], "anyshot experiment terms needs STORE"),
        (["fit", "x", "--outt", "y"], "Did you mean --out instead of --outt?"),
        (["fit", "x", "--out", "y", "--label-colum", "z"], "Did you mean --label-column?"),
        (["fit", "x", "y", "z", "--out", "w"], "anyshot fit does not take y z"),
        (
            ["evaluate", "BIRDS", "--episodes", "many"],
            'Invalid value for --episodes: unable to convert "many"',
        ),
        (["evaluate", "BIRDS", "--episodes", "9" * 5000], "99...99"),
        (["evaluate", "BIRDS", "--seed"], "parameter --seed requires an argument"),
        (["paper", "tables", "-o", "OUT", "--format", "doc"], 'Choose from: "markdown", "latex", "csv"'),
        (["--zzz"], 'Unknown command "--zzz"'),
        (["study", "quik"], "did you mean 'quick'"),
        (["study", "nowhere.py"], "no study file"),
        (["study", "quick", "--heads", "cosine-prot"], "did you mean 'cosine-proto'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(birds, tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    recipe = Recipe(data="none", head="proto", train_shot=4, way=4, size=16, width=2)
    Model(recipe, 3).save(tmp_path / "model" / "model.safetensors")
    images = np.zeros((6, 16, 16, 1), np.uint8)
    write_store(tmp_path / "glyphs", [images], np.repeat([0, 1], 3), ["a", "b"], ["test"] * 2)
    before = sorted(tmp_path.rglob("*"))
    named = {"BIRDS": birds, "GLYPHS": tmp_path / "glyphs", "MODEL": tmp_path / "model", "OUT": tmp_path / "out"}
    assert run(monkeypatch, *[named.get(word, word) for word in words]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert len(printed) < 500
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("verb", [pytest.param(verb, id=" ".join(name)) for name, verb in list_verbs().items()])
def test_every_argument_has_a_help(verb):
    arguments = [one for one in verb.assemble_argument_collection(parse_docstring=True) if one.show]
    assert [one.name for one in arguments if not (one.parameter.help or "").endswith((".", "?"))] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["predict", "m", "--format", "csv", "a", "b"], {"classifier": Path("m"), "images": (Path("a"), Path("b"))}),
        (["fit", "s", "-o", "x", "--no-cache"], {"out": Path("x"), "cache": False}),
        (["fit", "s", "--output=x", "--label_column", "c"], {"out": Path("x"), "label_column": "c"}),
        (["evaluate", "s", "--shots", "1", "4", "--way", "all"], {"shots": (1, 4), "way": "all"}),
        (["pack", "folder", "s", "-o", "x", "--split", "1", "0", "0", "--embed"], {"split": (1, 0, 0), "embed": ()}),
        (["fit", "s", "-o", "x", "--split", "train", "val"], {"split": ("train", "val")}),
    ],
)
def test_words_become_values(words, expected):
    _, bound, _ = APP.parse_args(words, exit_on_error=False, print_error=False)
    values = {name: value for one in bound.arguments.values() for name, value in getattr(one, "__dict__", {}).items()}
    values |= bound.arguments
    values |= vars(values["layout"]) if "layout" in values else {}
    assert {name: values[name] for name in expected} == expected


def test_what_was_not_foreseen_is_one_sentence_and_with_debug_a_traceback(monkeypatch, capsys):
    def fail():
        raise KeyError("[/red] a\nname")

    monkeypatch.setattr("anyshot.paper.audit.run_checks", fail)
    assert run(monkeypatch, "paper", "audit") == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "internal error (KeyError: '[/red] a" in printed
    assert "please report it" in printed
    for words in (["--debug", "paper", "audit"], ["paper", "audit", "--debug"]):
        with pytest.raises(KeyError):
            run(monkeypatch, *words)


@pytest.mark.parametrize(
    ("where", "code", "out", "err"),
    [
        ("PYTHONIOENCODING=ascii {python} -m anyshot predict model x.npz --top 1", 0, "\\xe9", ""),
        ("{python} -m anyshot predict model x.npz > /dev/full", 2, "", "No space left on device"),
        ("{python} -m anyshot predict model x.npz >&-", 0, "", ""),
        ("{python} -m anyshot predict model nowhere.npz >&-", 2, "", "there is no file"),
        ("LC_ALL=C PYTHONUTF8=0 {python} -m anyshot predict model é.npz", 2, "", "there is no file"),
    ],
)
def test_a_terminal_that_knows_ascii_alone_and_an_output_that_is_full_or_closed(tmp_path, where, code, out, err):
    X = RNG.normal(size=(8, 3)).astype(np.float32)
    FewShotClassifier().fit(X, ["é", "b"] * 4).save(tmp_path / "model")
    np.savez(tmp_path / "x.npz", features=X)
    command = where.format(python=sys.executable)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (code, int(code > 0))
    assert out in done.stdout
    assert err in done.stderr


def test_an_interrupted_command_says_so(tmp_path, monkeypatch, capsys):
    def interrupt(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("anyshot.cli.paths.check_source", interrupt)
    assert run(monkeypatch, "advise", tmp_path) == 130
    assert capsys.readouterr().err == "anyshot: interrupted.\n"


def test_a_reader_that_closes_the_pipe_is_no_error():
    command = f"{sys.executable} -m anyshot paper audit --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


NOT_THERE = """import contextlib, sys
from anyshot.cli import main
for words in sys.argv[1:]:
    sys.argv = ["anyshot", *words.split()]
    with contextlib.suppress(SystemExit):
        main.main()
print("torch" in sys.modules)
"""


def test_what_is_not_there_is_told_before_torch_is_imported(tmp_path):
    source, folder, model = "no file or folder none", "no classifier none", "nor a trained model none"
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text("{}")
    told = {
        "fit none -o x": source,
        "advise none": source,
        "advise made --holdout none": source,
        "evaluate none": source,
        "embed none -o x": source,
        "predict none none": folder,
        "predict made none": source,
        "test none made": folder,
        "test made none": source,
        "add none none": folder,
        "add made none": source,
        "remove none red": folder,
        "remove made --examples none": source,
        "merge made none -o x": folder,
        "export none -o x": model,
        "serve none": model,
    }
    command = [sys.executable, "-c", NOT_THERE, *told]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "False\n"
    for line, (words, sentence) in zip(done.stderr.splitlines(), told.items(), strict=True):
        assert f"there is {'neither a classifier ' if sentence == model else ''}{sentence}" in line, words
