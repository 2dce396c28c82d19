"""The verb that measures heads on few-shot episodes: evaluate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cyclopts import Parameter

from anyshot.cli.options import OptionalOut, ReadOptions, parse_way


@Parameter(name="*", group="Episodes")
@dataclass(frozen=True)
class EpisodeOptions:
    """Episodes: what they are drawn from and how many.

    Attributes:
        shots: Test shots; by default those of 1, 2, 4, 8, 16 and 32 that the smallest class has examples for.
        unequal: Unequal shots between 1 and the largest test shot instead.
        way: Classes per episode; 'all' for every class at once.
        queries: Queries per class.
        episodes: Episodes; the same for all heads and shots.
        seed: Seed of the episodes.
        dirichlet: Make some classes commoner than others among the queries, by a Dirichlet distribution: the smaller,
            the more unequal.
        stop_early: Stop after a sixteenth or a quarter of the episodes, where these tell all heads apart.
        plan: File of saved episodes, instead of way, queries, episodes and seed.
        save_plan: File to save the episodes to, to share them.
    """

    shots: tuple[int, ...] = ()
    unequal: Literal["uniform", "step", "long-tailed"] | None = None
    way: str = "5"
    queries: int = 16
    episodes: int = 10_000
    seed: int = 0
    dirichlet: float | None = None
    stop_early: bool = False
    plan: Path | None = None
    save_plan: Path | None = None


def evaluate(
    store: Path,
    /,
    *,
    episodes: EpisodeOptions = EpisodeOptions(),
    options: ReadOptions = ReadOptions(),
    model: str | None = None,
    heads: tuple[str, ...] = (),
    readouts: tuple[str, ...] = ("own",),
    split: str = "test",
    out: OptionalOut = None,
) -> None:
    """Test heads on features, or on a model's features of images.

    A head is a way to tell classes apart by a few examples of each. It is tested in episodes: small tasks with some
    classes (the way), some examples of each to learn from (the shots) and others to recognise (the queries).

    Args:
        store: A store, made by `anyshot pack`; pictures in class folders (or a zip of them, or a table of paths and
            labels); a file of features with labels.
        episodes: What heads are tested on.
        options: How sources are read and networks run.
        model: What embeds images, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        heads: Heads to test; the model's own, or proto and cosine-proto, by default.
        readouts: Other ways to read the same features: own, swapped (the other score), pcaN and estN (after a
            projection to N numbers); those that do not fit a head are left out.
        split: Classes to test on: train, val or test; test by default.
        out: Folder for the table (table.csv) and the recalls of every episode; printed only by default.
    """
    from anyshot.machine import keep_freed_memory, limit_threads_to_free_cores

    limit_threads_to_free_cores()  # before torch is imported, which counts its threads once
    registry = options.registry()
    from anyshot.measure.plan import Protocol
    from anyshot.measure.verbs import EvaluationOptions, run_evaluation

    keep_freed_memory()
    way = parse_way(episodes.way)
    evaluation = EvaluationOptions(
        model=model,
        heads=heads,
        split=split,
        protocol=Protocol(episodes.shots, way, episodes.queries, episodes.episodes, episodes.seed),
        unequal=episodes.unequal,
        readouts=readouts,
        dirichlet=episodes.dirichlet,
        stop_early=episodes.stop_early,
        plan=episodes.plan,
        save_plan=episodes.save_plan,
        out=out,
    )
    print(run_evaluation(store, evaluation, registry, options.features(), options.layout))
