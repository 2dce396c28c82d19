"""FewShotClassifier on pictures: a backbone, a classifier of its features, and thumbnails of the exemplars."""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt8
from PIL import Image
from sklearn.utils.validation import check_is_fitted

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import has_backbone, load_image_folder, save_folder
from anyshot.classify.keys import hash_rows
from anyshot.classify.support import Support
from anyshot.data.pictures import capture_time
from anyshot.data.source import Item, check_content, select_splits
from anyshot.errors import BadInput, as_bad_input
from anyshot.measure.groups import MOST_EXAMPLES, name_bursts, parse_time
from anyshot.models.cache import FeatureCache
from anyshot.models.devices import map_in_threads
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embed, Embedder, load_embedder
from anyshot.models.features import EmbeddedItem, embed_items, open_examples
from anyshot.models.model import Model
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import OnProgress, no_progress

BATCH = 1024  # pictures that are learned at once: their pixels stay in memory until their thumbnails are made
THUMBNAIL = 144  # pixels of the longer side of a thumbnail

Picture = str | Path | bytes | UInt8[np.ndarray, "height width channel"]
Pictures = str | Path | Iterable[Picture]
Labels = Shaped[np.ndarray, " image"]
Times = Sequence[float | None]  # when pictures were taken, in seconds, where the file or its name says so


class RemovedExamples(NamedTuple):
    """Examples that were taken out of a classifier, and can be put back."""

    support: Support
    thumbnails: dict[int, bytes]

    def rename(self, label: Any) -> "RemovedExamples":
        """Return the examples under another label."""
        return self._replace(support=self.support.rename(label))


class ImageClassifier:
    """Classify pictures by comparing their features with the mean of each class.

    Args:
        backbone: efficientnet-lite0, which comes with the package, the folder of a trained model, `timm:NAME`, an
            .onnx file, or a function of uint8 images "image side side 3".
        side: Pixels of the square that a function is given; models know their own.
        registry: What heads, backbones and readouts are looked up in; the package's own where None.
        **arguments: Of FewShotClassifier (head, readout, base, reject, keep, ...). Without a head: a trained model's
            own, or the posterior on features that no head was trained on.

    Attributes:
        backbone: What turns pictures into features.
        classifier: The FewShotClassifier of these features, with all its attributes.
        thumbnails: Small JPEGs of the exemplars, by their keys.
        confirmed: Keys and labels of examples whose label a person has confirmed, so that no review lists them again.
        classes_: The names of the classes, in the order of probabilities.

    Examples:
        >>> ImageClassifier().fit("photos").predict(["new.jpg"])  # doctest: +SKIP
        array(['apple'], dtype='<U5')
    """

    def __init__(
        self,
        backbone: "str | Path | Model | Embed | Embedder" = DEFAULT_EMBEDDER,
        *,
        side: int | None = None,
        registry: Registry | None = None,
        **arguments: Any,
    ) -> None:
        self.backbone = load_embedder(backbone, side, registry or BUILTIN)
        model = self.backbone.model
        if model is None:
            self.classifier = FewShotClassifier(registry=registry, **arguments)
        else:
            self.classifier = FewShotClassifier.from_run(model, registry=registry, **arguments)
        self.thumbnails: dict[int, bytes] = {}
        self.confirmed: frozenset[tuple[int, Any]] = frozenset()

    # ------------------------------------------------------------------------------------------------------- learning

    def fit(
        self,
        images: Pictures,
        labels: Iterable[Any] | None = None,
        progress: OnProgress = no_progress,
        cache: FeatureCache | None = None,
        groups: Sequence[Any] | None = None,
    ) -> "ImageClassifier":
        """Learn from pictures, and forget what was known. See `partial_fit` for the arguments."""
        new = copy(self)
        new.thumbnails, new.confirmed = {}, frozenset()
        new.classifier.forget()
        return self._become(new.partial_fit(images, labels, progress, cache, groups))

    def partial_fit(
        self,
        images: Pictures,
        labels: Iterable[Any] | None = None,
        progress: OnProgress = no_progress,
        cache: FeatureCache | None = None,
        groups: Sequence[Any] | None = None,
    ) -> "ImageClassifier":
        """Learn from more pictures, of known classes or new ones; all of them, or none if it is interrupted.

        Args:
            images: A folder of class folders, an archive of one, a table of paths and labels, or pictures. What such a
                source holds back for testing is not learned from; files of it that cannot be read are left out, each
                with a warning.
            labels: The labels of pictures; a text is that of all.
            progress: Is called with shares of the work that add up to 1.
            cache: Pictures whose features it has are not embedded again.
            groups: Which pictures belong together, one for each (see `FewShotClassifier.fit`). Where None, these are
                the groups of the source, if it has some; else photos of one class taken within 30 seconds of each
                other, and near-copies by their features.
        """
        if labels is None:
            if not isinstance(images, str | Path):
                raise BadInput("pictures need labels: give one for each picture, or a folder of class folders.")
            with open_examples(Path(images), choose=partial(select_splits, wanted=(), for_test=False)) as source:
                check_content(source, Path(images), has_features=False)
                groups = source.groups if groups is None else groups
                unread = self.learn(source.items, source.labels, progress, cache, groups=groups)
            for why in unread:
                warnings.warn(f"left out: {why}", stacklevel=2)
            return self
        items = [_make_item(image) for image in ([images] if isinstance(images, str | Path) else images)]
        names = [labels] * len(items) if isinstance(labels, str) else list(labels)
        if len(items) != len(names):
            raise BadInput(f"there are {len(items)} pictures and {len(names)} labels: give one for each.")
        self.learn(items, names, progress, cache, must_read_all=True, groups=groups)
        return self

    def learn(
        self,
        items: Sequence[Item],
        labels: Sequence[Any],
        progress: OnProgress = no_progress,
        cache: FeatureCache | None = None,
        must_read_all: bool = False,
        on_batch: Callable[[np.ndarray, Sequence[str], Sequence[Item], Times], None] = lambda *batch: None,
        groups: Sequence[Any] | None = None,
    ) -> list[str]:
        """Learn from the pictures of a source, and return for each that could not be read the reason.

        Args:
            items: The pictures.
            labels: Their labels.
            progress: Is called with shares of the work that add up to 1.
            cache: Pictures whose features it has are not embedded again.
            must_read_all: Whether a picture that cannot be read is an error.
            on_batch: Is called with the features, labels, items and times of each batch that was learned.
            groups: Which pictures belong together (see `partial_fit`).
        """
        if groups is not None and len(groups) != len(items):
            raise BadInput(f"there are {len(items)} pictures and {len(groups)} groups: give one for each.")
        new, unread, n_learned = copy(self), list[str](), 0
        times: Times = [None] * len(items)
        if groups is None and len(items) <= MOST_EXAMPLES:
            times = [find_time(item) for item in items]
        groups = name_bursts(labels, times) if groups is None else groups
        embedded = new._embed(items, cache, None if must_read_all else unread)
        readable = (row for row in zip(embedded, labels, groups, times, strict=True) if row[0].features is not None)
        while batch := list(islice(readable, BATCH)):
            examples, names, batch_groups, batch_times = zip(*batch, strict=True)
            features = np.stack([example.features for example in examples])
            new._learn_batch(examples, features, np.array(names), batch_groups)
            on_batch(features, list(map(str, names)), [example.item for example in examples], batch_times)
            n_learned += len(batch)
            progress(len(batch) / len(items))
        if not n_learned:
            why = f" (the first: {unread[0].rstrip('.')})" if unread else ""
            raise BadInput(f"there are no pictures to learn from{why}.")
        progress(1 - n_learned / len(items))  # the share of those that could not be read
        self._become(new)
        return unread

    def __copy__(self) -> "ImageClassifier":
        """Return another classifier that learns on its own."""
        other = object.__new__(type(self))
        other.__dict__ = {**self.__dict__, "classifier": copy(self.classifier)}
        return other

    def _become(self, other: "ImageClassifier") -> "ImageClassifier":
        """Take over what another has learned, at once."""
        self.classifier.become(other.classifier)
        self.thumbnails, self.confirmed = other.thumbnails, other.confirmed
        return self

    def _embed(
        self, items: Sequence[Item], cache: FeatureCache | None, unread: list[str] | None = None
    ) -> Iterator[EmbeddedItem]:
        """Yield pictures with their features, in order; one that cannot be read is an error or listed in `unread`."""
        for example in chain.from_iterable(embed_items(self.backbone, items, cache)):
            if example.features is None:
                if unread is None:
                    raise BadInput(example.why)
                unread.append(example.why)
            yield example

    def _learn_batch(
        self, examples: Sequence[EmbeddedItem], features: np.ndarray, labels: Labels, groups: Sequence[Any]
    ) -> None:
        """Learn from pictures by their features, and make thumbnails of the exemplars among them."""
        self.classifier.partial_fit(features, labels, groups=groups)
        rows = list(zip(hash_rows(features).tolist(), labels.tolist(), examples, strict=True))
        self.confirmed |= {(key, label) for key, label, example in rows if example.item.is_confirmed}
        missing = self.classifier.exemplar_keys() - self.thumbnails.keys()
        new = {key: example for key, _, example in rows if key in missing}
        self._select_thumbnails(dict(zip(new, map_in_threads(self._make_thumbnail, new.values()), strict=True)))

    def _select_thumbnails(self, *more: Mapping[int, bytes]) -> None:
        """Set the thumbnails of the exemplars, from those that are here and more; copies share the old dictionary."""
        exemplars = self.classifier.exemplar_keys()
        jpegs = chain.from_iterable(thumbnails.items() for thumbnails in (self.thumbnails, *more))
        self.thumbnails = {key: jpeg for key, jpeg in jpegs if key in exemplars}

    def _make_thumbnail(self, example: EmbeddedItem) -> bytes:
        """Return a small JPEG of an example as the backbone sees it."""
        pixels = example.pixels
        if pixels is None:  # The features came from the cache, and the picture was not decoded.
            pixels = self.backbone.prepare(example.item.read(), example.item.name, example.item.box)
        return make_thumbnail(pixels)

    def merge(self, *others: "ImageClassifier") -> "ImageClassifier":
        """Add the examples of other classifiers with the same backbone and head (see `FewShotClassifier.merge`)."""
        for other in others:
            if self.backbone.fingerprint != other.backbone.fingerprint:
                ours, theirs = (str(each.backbone.about.get("backbone", "?")) for each in (self, other))
                raise BadInput(f"only classifiers with the same backbone can merge: these have {ours} and {theirs}.")
        self.classifier.merge(*(other.classifier for other in others))
        self._select_thumbnails(*(other.thumbnails for other in others))
        self.confirmed = self.confirmed.union(*(other.confirmed for other in others))
        return self

    def remove(self, labels: Sequence[Any]) -> "ImageClassifier":
        """Remove these classes."""
        self.classifier.remove(labels)
        self._select_thumbnails()
        return self

    def take_out(self, label: Any, key: int | None = None, x: Any = None) -> "RemovedExamples":
        """Remove a class, or one example of it, and return it for `put_back` (see `FewShotClassifier.take_out`)."""
        before, support = self.thumbnails, self.classifier.take_out(label, key, x)
        self._select_thumbnails()
        return RemovedExamples(support, {key: before[key] for key in support.exemplar_keys() & before.keys()})

    def put_back(self, removed: "RemovedExamples") -> "ImageClassifier":
        """Add again what `take_out` returned."""
        self.classifier.put_back(removed.support)
        self._select_thumbnails(removed.thumbnails)
        return self

    # ----------------------------------------------------------------------------------------------------- predicting

    @property
    def classes_(self) -> Shaped[np.ndarray, " class"]:
        """The names of the classes, in the order of probabilities."""
        return self.classifier.classes_

    def predict(self, images: Pictures | bytes | np.ndarray) -> Labels:
        """Return the likeliest class of each picture."""
        return self.classifier.predict(self.features_of(images))

    def predict_proba(self, images: Pictures | bytes | np.ndarray) -> Float[np.ndarray, "image class"]:
        """Return calibrated probabilities of the classes."""
        return self.classifier.predict_proba(self.features_of(images))

    def is_known(self, images: Pictures | bytes | np.ndarray) -> Bool[np.ndarray, " image"]:
        """Return whether each picture looks like one of the classes, rather than none of these."""
        return self.classifier.is_known(self.features_of(images))

    def score(self, images: Pictures | bytes | np.ndarray, labels: Iterable[Any]) -> float:
        """Return the accuracy."""
        return float(np.mean(self.predict(images) == np.array(list(labels))))

    def features_of(
        self, images: Pictures | bytes | np.ndarray, cache: FeatureCache | None = None
    ) -> Float[np.ndarray, "image ..."]:
        """Return the features of pictures: paths, bytes of image files, or uint8 arrays."""
        is_single = isinstance(images, str | Path | bytes) or (isinstance(images, np.ndarray) and images.ndim == 3)
        items = [_make_item(image) for image in ([images] if is_single else images)]  # type: ignore[arg-type, union-attr]
        if not items:
            raise BadInput("there are no pictures.")
        rows = [example.features for example in self._embed(items, cache)]
        return np.stack([row for row in rows if row is not None])

    def features(self, pictures: UInt8[np.ndarray, "image side side 3"]) -> Float[np.ndarray, "image ..."]:
        """Return the features of pictures that have the backbone's size."""
        return self.backbone.features(pictures)

    def read(self, image: Picture) -> UInt8[np.ndarray, "side side 3"]:
        """Return a picture upright, in colour, and cut to the central square of the backbone's size."""
        item = _make_item(image)
        missing = as_bad_input(FileNotFoundError, f"there is no file {item.name}.")
        with as_bad_input(OSError, f"{item.name} cannot be read as an image", "."), missing:
            return self.backbone.prepare(item.read(), item.name)

    # -------------------------------------------------------------------------------------------------------- sharing

    def save(self, path: str | Path) -> None:
        """Write the classifier to a folder that anyone can load (see `anyshot.classify.files`)."""
        check_is_fitted(self.classifier)
        with self.classifier._lock:  # Nobody may learn between the writing of exemplars and of their thumbnails.
            save_folder(self.classifier, Path(path), self.backbone, self.thumbnails, self.confirmed)

    @staticmethod
    def load(
        path: str | Path, backbone: "str | Path | Embed | Embedder | None" = None, registry: Registry | None = None
    ) -> "ImageClassifier":
        """Return a classifier from its folder.

        Args:
            path: The folder.
            backbone: The backbone, where it is a function, which is not in the folder.
            registry: Needed for a head or a backbone that is not ours.
        """
        embedder, classifier, thumbnails, confirmed = load_image_folder(Path(path), backbone, registry)
        loaded = ImageClassifier(embedder, registry=registry)
        loaded.classifier, loaded.thumbnails, loaded.confirmed = classifier, thumbnails, confirmed
        return loaded

    def to_onnx(self, path: str | Path) -> None:
        """Write backbone and classifier to an ONNX file for pixels from 0 to 255 "image channel height width"."""
        from anyshot.classify.onnx_export import export_onnx

        export_onnx(self.classifier, Path(path), self.backbone)


def load_classifier(folder: Path, registry: Registry = BUILTIN) -> ImageClassifier | FewShotClassifier:
    """Return the classifier of pictures or of features that a folder holds."""
    if has_backbone(folder):
        return ImageClassifier.load(folder, registry=registry)
    return FewShotClassifier.load(folder, registry)


def _make_item(image: Picture) -> Item:
    """Return a picture as an item of a source."""
    if isinstance(image, str | Path):
        return Item(str(image), "", None, Path(image).read_bytes)
    return Item("a picture", "", None, lambda: image)


def find_time(item: Item) -> float | None:
    """Return when a picture was taken, by its file or the file's name."""
    time = capture_time(item.read)
    return parse_time(item.name) if time is None else time


def make_thumbnail(pixels: UInt8[np.ndarray, "side side 3"]) -> bytes:
    """Return a small JPEG of a picture."""
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return out.getvalue()
