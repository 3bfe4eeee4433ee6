"""What a model promises about the records that it was trained on, in figures and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

NOT_KNOWN = "not known: the file is of a version that did not say"


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """The certified privacy of a model: of what, against whom, from which run."""

    private: bool = False
    epsilon: float | None = None
    delta: float | None = None
    unit: str = "record"
    """What is protected: a record, or a person with at most a stated number of records."""
    adversary: str = "wire"
    """Who may look: `wire` is everybody who sees all messages, the model included."""
    noise_in: str = "local"
    colluders: int | None = None
    """With noise inside of sums: how many ranks may work together."""
    algorithm: str = ""
    ranks: int | None = None
    run: str = ""
    """The random name that ties the model to the ledgers of its run."""
    config: str = ""
    """The digest of the run's settings."""
    budget_ended: str = ""
    """In which round, and on how many ranks, the budget ended training; nothing if it did not."""
    evaluation: str = NOT_KNOWN
    """What evaluation read, and whether that is inside of the guarantee."""

    @property
    def text(self) -> str:
        """The statement in words."""
        if not self.private:
            why = "" if self.run else ": the file does not say what its run promised"
            return f"NOT PRIVATE{why}; evaluation: {self.evaluation}"
        spent = "no finite epsilon" if self.epsilon is None else f"epsilon {self.epsilon:.4g}"
        seen = "all messages and the model"
        if self.noise_in == "sum":
            seen = f"the sums, the model and the noise of {_ranks(self.colluders)}"
        elif self.noise_in == "pairs":
            seen = f"all messages, the model and the secrets of {_ranks(self.colluders)}"
        return (
            f"{spent} at delta {self.delta or 0:g}, certified for replacing one {self.unit}, against anybody who sees "
            f"{seen}; {self.algorithm}, {_ranks(self.ranks)}, run {self.run}; evaluation: {self.evaluation}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PrivacyStatement:
        """Return the statement that `to_dict` described; keys that a newer version added are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def _ranks(count: int | None) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
