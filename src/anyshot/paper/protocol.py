"""Claims about the set-up: datasets, shots and batches, backbones, and what the paper prints but nothing can derive."""

from anyshot.paper.claims import Evidence, all_hold, claim, true_or_false
from anyshot.paper.printed import TEST_SHOTS, TRAIN_SHOTS, exact_grids, find, study, text
from anyshot.paper.rounding import parse

PARAMETERS = {"conv4": 113_088, "resnet12": 12_424_320}  # counted on the two architectures; the paper prints neither

# Batches of 256 images in one pass over CUB's 5,903 training images, by train shot; counted on its classes.
CUB_IMAGES, CUB_BATCHES = 5903, {4: 22, 8: 21, 16: 18, 32: 12}


@claim("Sec. 4.3", "resnet12 has more than this many times the parameters of conv4")
def _parameter_factor() -> Evidence:
    (printed,) = text("parameter factor")
    factor = PARAMETERS["resnet12"] / PARAMETERS["conv4"]
    listed = f"{PARAMETERS['resnet12']:,} / {PARAMETERS['conv4']:,} = {factor:.1f}"
    return f"over {printed}", [true_or_false(factor > parse(printed), listed)]


@claim("Sec. 4.2", "the train and test shots of the text are those of every grid")
def _shots() -> Evidence:
    train, test = ([int(number) for number in text(f"{which} shots")] for which in ("train", "test"))
    low, high = (int(number) for number in text("test shot range"))
    stands = train == list(TRAIN_SHOTS) and test == list(TEST_SHOTS) and (low, high) == (test[0], test[-1])
    listed = f"{len(exact_grids())} grids of {len(test)} x {len(train)} cells"
    return f"{len(train)} train shots, {len(test)} test shots", [true_or_false(stands, listed)]


@claim("Sec. 4.1", "the study covers two backbones and four datasets")
def _settings() -> Evidence:
    data, backbones = ({group[i] for group in study()} for i in (0, 1))
    pairs = {group.setting for group in study()}
    listed = f"{len(backbones)} and {len(data)}, {len(study())} grids"
    alone = "meta-inat on conv4 alone, tiered on resnet12 alone"
    return "2 backbones, 4 datasets", [
        true_or_false((len(backbones), len(data)) == (2, 4), listed, "each appears"),
        f"{len(pairs)} of the {len(data) * len(backbones)} combinations: {alone}",
    ]


@claim("Sec. 4.2, Sec. A.2", "every training batch has the same size")
def _batch_size() -> Evidence:
    (size,), (cut,) = text("batch size"), text("way cut, percent")
    ways = [int(size) / shot for shot in TRAIN_SHOTS]
    fewer = [way * (1 - int(cut) / 100) for way in ways]
    whole = all(way == int(way) for way in ways + fewer)
    reduced = int(int(size) * (1 - int(cut) / 100))
    listed = f"ways {'/'.join(f'{w:g}' for w in ways)}, or {'/'.join(f'{w:g}' for w in fewer)} where cut by {cut} %"
    exceptions = f"{reduced} for feat on resnet12 and the proto family on cub/resnet12"
    return size, [
        true_or_false(whole, listed, "within a group, over its train shots"),
        true_or_false(reduced == int(size), exceptions, "for all models of the study"),
    ]


@claim("Sec. 4.2", "a constant batch size gives all models the same amount of data")
def _same_data() -> Evidence:
    (size,), (images,), (classes,) = text("batch size"), text("cub images"), text("cub classes")
    each = float(parse(images) / parse(classes))
    shares = [f"{100 * batches * int(size) / CUB_IMAGES:.0f}" for batches in CUB_BATCHES.values()]
    seen = f"{', '.join(shares[:-1])} and {shares[-1]} % of the images at {', '.join(map(str, CUB_BATCHES))} shots"
    why = f"a class of {each:.0f} images gives {TRAIN_SHOTS[-1]} only once"
    return "same", [true_or_false(len(set(shares)) == 1, f"{seen}, as {why}", "in a pass over cub")]


@claim("Table 3, Sec. A.1", "train, validation and test classes add up to the classes of each dataset")
def _splits_add_up() -> Evidence:
    table = {(row["data"], row["quantity"]): int(parse(row["printed"])) for row in find(table="Table 3")}
    datasets = dict.fromkeys(data for data, _ in table)
    sums = ((d, sum(table[d, part] for part in ("train", "val", "test")) == table[d, "classes"]) for d in datasets)
    return "4 datasets", [all_hold(sums)]


@claim("Sec. A.1, Table 3", "class and image counts of the text are those of the table")
def _text_matches_table() -> Evidence:
    table = {(row["data"], row["quantity"]): parse(row["printed"]) for row in find(table="Table 3")}
    quoted = {("cub", "images"): "cub images", ("cub", "classes"): "cub classes", ("mini", "classes"): "mini classes"}
    quoted |= {("meta-inat", "classes"): "meta-inat classes", ("meta-inat", "test"): "meta-inat test classes"}
    cases = [(words, parse(text(words)[0]) == table[where]) for where, words in quoted.items()]
    for data in ("cub", "mini", "tiered"):
        parts = [table[data, part] for part in ("train", "val", "test")]
        cases.append((f"{data} split", [parse(number) for number in text(f"{data} split")] == parts))
    return f"{len(cases)} statements", [all_hold(cases)]


@claim("Sec. A.1", "test classes of meta-inat are one fifth of all")
def _meta_inat_fifth() -> Evidence:
    (classes,), (test,) = text("meta-inat classes"), text("meta-inat test classes")
    return test, [true_or_false(int(test) * 5 == int(classes), f"{classes} / 5 = {int(classes) / 5:g}")]


@claim("Sec. A.1, Table 3", "images of mini are its classes times the images of a class")
def _mini_images() -> Evidence:
    (classes,), (each,), printed = text("mini classes"), text("mini images a class"), _images("mini")
    product = int(classes) * int(each)
    return printed, [true_or_false(parse(printed) == product, f"{classes} x {each} = {product:,}")]


@claim("Sec. A.1, Table 3", "images of meta-inat fit its bounds on the images of a class")
def _meta_inat_images() -> Evidence:
    (classes,), images, printed = text("meta-inat classes"), text("meta-inat images a class"), _images("meta-inat")
    low, high = (int(classes) * int(each) for each in images)
    return printed, [true_or_false(low <= parse(printed) <= high, f"between {low:,} and {high:,}")]


@claim("Sec. A.4", "PCA, EST and cosine-proto are these rows of the gain tables")
def _comparison_rows() -> Evidence:
    first, last, third, fourth = (int(number) for number in text("rows of the comparison"))
    cases = []
    for table in ("Table 5", "Table 6", "Table 7"):
        rows = [(row["head"], row["readout"]) for row in find("sensitivity", table)]
        wanted = [("proto", "pca60"), ("proto", "est60"), ("cosine-proto", "own")]
        cases.append((table, rows[first - 1 : last] == wanted == rows[third - 1 : fourth]))
    return f"{first}-{last} and {third}-{fourth}", [all_hold(cases)]


@claim("Table 1, Sec. 3.1", "cosine prediction is more consistent than Euclidean prediction for all four models")
def _consistent_prediction() -> Evidence:
    share = _consistency()
    cases = ((f"{h} {s}-shot", share[h, "cosine", s] > share[h, "euclidean", s]) for h, r, s in share if r == "cosine")
    return "all models", [all_hold(cases)]


@claim("Table 1, Sec. 3.1", "4- and 32-shot consistency lie much closer after cosine training")
def _consistent_training() -> Evidence:
    share = _consistency()
    scores, heads = ("euclidean", "cosine"), ("proto", "cosine-proto")
    gaps = {head: [abs(share[head, score, 4] - share[head, score, 32]) for score in scores] for head in heads}
    listed = ", ".join(f"{head} {gap[0]} and {gap[1]} points" for head, gap in gaps.items())
    return "much closer", [true_or_false(max(gaps["cosine-proto"]) < min(gaps["proto"]), listed)]


@claim("Table 1", "shares of predictions that survive a new support")
def _consistency_shares() -> Evidence:
    shares = _consistency().values()
    return f"{min(shares)} to {max(shares)} %", ["needs the models; eight shares, no cells behind them"]


@claim("Sec. 3.3", "ratio of the FRN terms and its standard deviations")
def _frn_terms() -> Evidence:
    (ratio,), (deviation,) = text("frn ratio"), text("frn ratio deviation")
    (within,) = text("frn ratio deviation within a query")
    why = "needs the model; the text speaks of the first and third term, but gives the ratio of the first and second"
    return f"{ratio}, {deviation}, {within}", [why]


@claim("Sec. 4.2", "95 % intervals by test shot, the same for all models")
def _confidence_intervals() -> Evidence:
    return ", ".join(text("confidence interval")), ["needs the accuracies of single episodes"]


@claim("Sec. 3.2", "feat with LayerNorm lies between Euclidean and cosine feat")
def _layer_norm_between() -> Evidence:
    return "generally", ["prints no sensitivities with LayerNorm"]


@claim("Sec. 4.3, Sec. 5", "how small advances on these benchmarks are, and which test shots other work uses")
def _prior_work() -> Evidence:
    (advance,), (largest,) = text("small advance"), text("usual largest test shot")
    return f"{advance} points; {largest}; {'/'.join(text('test shots of est'))}", ["facts of other papers"]


@claim("Table 3", "images of tiered")
def _tiered_images() -> Evidence:
    return _images("tiered"), ["the images of a class are not printed"]


def _images(data: str) -> str:
    """How many images a data set has, as printed."""
    return next(row["printed"] for row in find("images", "Table 3") if row["data"] == data)


def _consistency() -> dict[tuple[str, str, int], int]:
    """Percent of unchanged predictions by trained head, predictor and train shot."""
    return {(row["head"], row["readout"], row["train_shot"]): int(row["printed"]) for row in find("consistency")}
