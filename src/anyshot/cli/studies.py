"""The verbs that run studies and show their results: study, publish, report, convert, experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from anyshot.cli.options import DeviceOptions, OptionalOut, OutOption

if TYPE_CHECKING:
    from anyshot.measure.evaluate import EmbeddedSplit
    from anyshot.tables import Row


@Parameter(name="*", group="Training")
@dataclass(frozen=True)
class TrainOptions:
    """Training: from which data and on which machines.

    Attributes:
        data: Folder of stores.
        images: What to make a store of that DATA lacks: an archive, folder or file as `anyshot pack` takes it.
        on: Where models run: here, ray, ray://ADDRESS, or slurm. Under torchrun each model uses all its processes.
        workers: Models trained side by side here; by default one per core, as far as memory holds them.
        device: Where models train, as torch names it: cpu, cuda, cuda:1, mps; a GPU by default, where there is one.
        tensorboard: Write the histories as TensorBoard event files to OUT/tensorboard, too.
        amp: Train backbones in bfloat16, for GPUs; the models keep their names.
        low_memory: Train ResNet-12 in half of the memory and 4/3 of the time; the models keep their names.
    """

    data: Path = Path("data")
    images: Path | None = None
    on: str = "here"
    workers: int = 0
    device: str = ""
    tensorboard: bool = False
    amp: bool = False
    low_memory: bool = False


def study(
    name: str,
    /,
    *,
    training: TrainOptions = TrainOptions(),
    heads: tuple[str, ...] = (),
    only: str = "",
    out: OptionalOut = None,
    dry_run: bool = False,
    ready: bool = False,
    stop_early: bool = False,
) -> None:
    """Train and test the models of a study, as far as they are missing, and report.

    A study is a list of models to train (heads, which are ways to tell classes apart, each for some number of shots,
    which are examples of a class) and how to test them.

    Args:
        name: A study of the package (quick, ...) or the path of a Python file with a function study(heads).
        training: How models are trained.
        heads: Heads instead of the study's own choice; 'all' for every head.
        only: Only some models, by the words of their names: proto,cosine-proto or cub/conv4/frn or frn/4-shot.
        out: Folder of results; runs/NAME by default. Models that are done there are skipped.
        dry_run: List models, updates, images and the estimated time on this machine, and do nothing.
        ready: Train nothing: test the models that come with the study on their features, into runs/NAME-ready.
        stop_early: Test on a sixteenth or a quarter of the episodes, where these tell the sensitivities of heads apart.
    """
    from anyshot.models.devices import use_device
    from anyshot.study.ready import run_ready
    from anyshot.study.runner import plan_study, run_study, run_study_early
    from anyshot.study.study import StudySource, find_study

    use_device(training.device, training.amp, training.low_memory)
    path = find_study(name)
    source = StudySource(path, heads or None)
    folder = out or Path("runs") / (f"{path.stem}-ready" if ready else path.stem)
    if dry_run:
        print(plan_study(source, training.data, only, training.workers))
        return
    from anyshot.report.page import write_report
    from anyshot.report.text import show_report

    run: Callable[[StudySource], list[Row]] = partial(run_ready, out=folder, only=only)
    if not ready:
        run = partial(run_study, out=folder, only=only, **vars(training))
    rows = run_study_early(run, source, folder, only) if stop_early else run(source)
    if rows:
        show_report([folder])
        print(f"open {write_report([folder], folder / 'report.html')}")


def publish(
    name: str,
    /,
    *,
    out: OutOption,
    run: Path | None = None,
    data: Path = Path("data"),
    heads: tuple[str, ...] = (),
    only: str = "",
    add: bool = False,
    ready: str = "",
) -> None:
    """Collect the results of a study in one folder for others: tables with intervals, experiments, figures, recipes.

    Args:
        name: The study, as `anyshot study` knows it; it must have been run.
        out: Folder to write: a new one, or one published before, which it replaces.
        run: Folder of its results; runs/NAME by default.
        data: Folder of stores.
        heads: Heads instead of the study's own choice, as in `anyshot study`.
        only: Only some models, as in `anyshot study`.
        add: Add these models to what is published in OUT, which stays; where both have a model, they must agree.
        ready: Keep these models, and their features of the test classes, beside the study for `--ready`.
    """
    from anyshot.study.publishing import publish
    from anyshot.study.ready import write_ready
    from anyshot.study.study import StudySource, find_study, select_recipes

    source = StudySource(find_study(name), heads or None)
    folder = run or Path("runs") / source.path.stem
    study = source.load()
    chosen = select_recipes(study.recipes, ready) if ready else []  # before the work, so that a misspelling is seen now
    publish(source, folder, data, out, only, add=add)
    print(f"open {out / 'README.md'}, or make a page of it: anyshot report {out}")
    if chosen:
        print(f"models kept in {write_ready(source, study, chosen, folder, data)}")


def report(*runs: Path, out: OutOption = Path("report.html"), text: bool = False, paper: bool = False) -> None:
    """Write the results of runs as one HTML page that opens without a network, or print them.

    Args:
        runs: Folders that a study or `anyshot evaluate --out` wrote, or their table.csv; several are shown together.
        out: The page to write; report.html by default.
        text: Print a summary, the sensitivities and a heatmap instead.
        paper: Add what holds in the paper; without runs, a report of the paper's printed grids.
    """
    if text:
        from anyshot.report.text import show_report

        show_report(runs, paper)
    else:
        from anyshot.report.page import write_report

        print(f"open {write_report(runs, out, paper)}")


def convert(weights: Path, /, *, out: OutOption) -> None:
    """Turn weights that the authors of FRN or FEAT published into a model of anyshot's.

    A recipe can begin with the file itself, too (`start="WEIGHTS.pth"`), and `--model` takes it.

    Args:
        weights: Their file, such as model.pth: of a Conv-4 or a ResNet-12.
        out: Folder of the model.
    """
    from anyshot.models.model import load_model

    model = load_model(weights)
    model.save(out / "model.safetensors")
    print(f"{out}: {model.recipe.backbone} of {weights}, read by {model.recipe.head}")


# ----------------------------------------------------------------------------------------------- anyshot experiment


@Parameter(name="*", group="Experiment")
@dataclass(frozen=True)
class ExperimentOptions:
    """Experiment: how much is measured, and where the results go.

    Attributes:
        split: Classes to test on: train, val or test.
        episodes: Episodes.
        seed: Seed of the episodes.
        out: CSV file to write the table to.
        figure: File to draw the figure to (.svg, .png, .pdf).
    """

    split: str = "test"
    episodes: int = 1000
    seed: int = 0
    out: OptionalOut = None
    figure: Path | None = None


def consistency(
    store: Path,
    /,
    *models: Path,
    experiment: ExperimentOptions = ExperimentOptions(),
    networks: DeviceOptions = DeviceOptions(),
) -> None:
    """Measure how many 1-shot predictions stay when only the support is drawn anew (Table 1).

    Each model (proto, cosine-proto, feat, cosine-feat) is read by both scores.

    Args:
        store: Store of images.
        models: Folders of trained models.
        experiment: How much is measured.
        networks: Where networks come from and where they run.
    """
    from anyshot.measure.experiments import model_consistency

    _run_experiment(store, models, experiment, networks, model_consistency, "consistency")


def terms(
    store: Path,
    /,
    *models: Path,
    experiment: ExperimentOptions = ExperimentOptions(),
    networks: DeviceOptions = DeviceOptions(),
) -> None:
    """Measure how nearly FRN's dropped term is proportional to the kept one, in 5-way 5-shot episodes (Sec. 3.3).

    Args:
        store: Store of images.
        models: Folders of trained frn models.
        experiment: How much is measured.
        networks: Where networks come from and where they run.
    """
    from anyshot.measure.experiments import model_terms

    _run_experiment(store, models, experiment, networks, lambda *given: [model_terms(*given)], "term_ratios")


def _run_experiment(
    store: Path,
    models: tuple[Path, ...],
    experiment: ExperimentOptions,
    networks: DeviceOptions,
    measure: "Callable[[EmbeddedSplit, int, int], list[Row]]",
    chart: str,
) -> None:
    """Measure each model and print the table; write and draw it where that is wanted."""
    registry = networks.registry()
    from anyshot.measure.experiments import embed_each
    from anyshot.tables import format_table

    embedded = embed_each(store, models, experiment.split, registry)
    rows = [row for one in embedded for row in measure(one, experiment.episodes, experiment.seed)]
    if experiment.figure is not None:
        from anyshot.show import figures

        figures.save_chart(getattr(figures, chart)(rows), experiment.figure)
    print(format_table(rows, experiment.out))


def compare(kind: str, run: Path, /, *, out: OptionalOut = None, figure: Path | None = None) -> None:
    """Compare cells of a study's table (Fig. 4, Fig. 5, Table 4).

    Args:
        kind: gains (by test shot), offsets (by train shot), swapped (scores), frn-forms (old against new) or mixed
            (shots drawn at random in training).
        run: Folder of a study's results, or its table.csv.
        out: CSV file to write the comparison to.
        figure: File to draw it to (.svg, .png, .pdf).
    """
    from anyshot.show.comparisons import run_comparison

    print(run_comparison(kind, run, out, figure))
