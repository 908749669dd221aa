"""A mean in which recent values weigh most."""


class DecayingMean:
    """total / weight of the values so far, both multiplied by `decay` at each new value.

    So about the latest 1 / (1 - decay) values count. A value may stand for `weight` ones, whose sum is `total`.
    """

    def __init__(self, decay: float, total: float = 0.0, weight: float = 0.0) -> None:
        """total, weight: of what is assumed before the first value."""
        self._decay, self._total, self.weight = decay, total, weight

    @property
    def value(self) -> float:
        """0 without a value."""
        return self._total / self.weight if self.weight else 0.0

    def add(self, total: float, weight: float = 1.0) -> None:
        self._total = self._decay * self._total + total
        self.weight = self._decay * self.weight + weight
