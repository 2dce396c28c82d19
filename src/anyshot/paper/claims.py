"""How a sentence of the paper becomes code: one small function per claim, with its id, its place and our words for it.

A claim may be read in several ways. Each reading is computed from the grids and judged; the claim takes the best
verdict among them, so that none is called contradicted while a reading its words allow stands. Where the words are
qualified ("generally", "on average"), what lies outside them is a remark and weighs nothing. Claims live by topic in
`robustness`, `accuracy` and `protocol`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module

from anyshot.paper.printed import Group, study
from anyshot.paper.rounding import Derived, Verdict, judge
from anyshot.paper.tables import Check, Interpretation

TOPICS = ("robustness", "accuracy", "protocol")
ORDER: tuple[Verdict, ...] = ("holds", "rounding", "contradicted")

Evidence = tuple[str, Sequence[Interpretation | str]]  # the printed value; readings of the claim, and remarks
_CLAIMS: list[Callable[[], Check]] = []


def claim(where: str, words: str, follows: str = "") -> Callable[[Callable[[], Evidence]], Callable[[], Check]]:
    """Register a function that finds the printed value and the readings of a claim; its name is the claim's id.

    Args:
        where: The places of the claim in the paper.
        words: The claim, in our words.
        follows: The number that it follows from, by its `Check.root`.
    """

    def register(find: Callable[[], Evidence]) -> Callable[[], Check]:
        def check() -> Check:
            printed, listed = find()
            readings = tuple(reading for reading in listed if isinstance(reading, Interpretation))
            verdicts = [reading.verdict for reading in readings]
            verdict: Verdict = min(verdicts, key=ORDER.index) if verdicts else "underivable"
            recomputed = "; ".join(map(str, listed))
            return Check(
                find.__name__.removeprefix("_").replace("_", "-"),
                where,
                words,
                printed,
                recomputed,
                verdict,
                readings,
                follows,
            )

        _CLAIMS.append(check)
        return check

    return register


def checks() -> Iterator[Check]:
    """All claims, in the order of the topics."""
    for topic in TOPICS:
        import_module(f"anyshot.paper.{topic}")
    return (check() for check in _CLAIMS)


def number(printed: str, derived: Derived, reading: str = "") -> Interpretation:
    """A reading that gives a number to set beside the printed one."""
    return Interpretation(reading, f"{float(derived):.3f}", judge(printed, derived))


def true_or_false(stands: bool, recomputed: str, reading: str = "") -> Interpretation:
    """A reading that is true or false of the printed cells."""
    return Interpretation(reading, recomputed, "holds" if stands else "contradicted")


def all_hold(cases: Iterable[tuple[object, bool]], reading: str = "") -> Interpretation:
    """A reading that is true where all cases stand."""
    return true_or_false(*count(cases), reading)


def all_parts_hold(*parts: Interpretation) -> Interpretation:
    """One reading of several parts, all of which must stand."""
    return Interpretation("", "; ".join(map(str, parts)), max((part.verdict for part in parts), key=ORDER.index))


def count(cases: Iterable[tuple[object, bool]]) -> tuple[bool, str]:
    """Whether all cases stand, and a sentence that names those that do not."""
    listed = list(cases)
    failing = [str(name) for name, stands in listed if not stands]
    but = f", not {', '.join(failing)}" if failing else ""
    return not failing, f"{len(listed) - len(failing)} of {len(listed)}{but}"


def sensitivity(group: Group) -> Derived:
    """The sensitivity of a group from its grid."""
    return study()[group].sensitivity
