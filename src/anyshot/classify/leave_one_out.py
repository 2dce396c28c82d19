"""The accuracy on the labelled examples themselves, and what it is not. Nothing here imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeaveOneOutAccuracy:
    """How many of the labelled examples are recognised when they are left out: each alone, and with its whole burst."""

    alone: float
    in_bursts: float | None = None
    """None where nothing tells of bursts."""
    bursts: int = 0
    images: int = 0
    """Examples in bursts."""
    told_by: tuple[str, ...] = ()
    """What tells of them: times, numbers in file names, near-identical features."""

    @property
    def accuracy(self) -> float:
        """With whole bursts left out, where something tells of them."""
        return self.alone if self.in_bursts is None else self.in_bursts

    @property
    def words(self) -> str:
        """For a reader who has not thought of it yet."""
        words = f"Left out one at a time, {self.alone:.1%} of these examples are recognised."
        if self.in_bursts is not None:
            words += (
                f" {self.images} of them are in {self.bursts} bursts of one moment (told by "
                f"{' and '.join(self.told_by)}), which may be recognised by their siblings: with whole bursts left out "
                f"it is {self.in_bursts:.1%}."
            )
        return words + " This is of the examples at hand; those of other days, places and sources are mostly harder."
