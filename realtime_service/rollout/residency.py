"""The models beside the default one that stay loaded here: a pure decision, by memory and last use."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    """`size`: bytes of the files of the variants that this process runs; `last`: monotonic seconds of the last call,
    minus infinity without one; `busy`: it must stay, because calls are in flight, or it was loaded just now."""

    size: int
    last: float
    busy: bool = False
    loaded: bool = False


@dataclass(frozen=True)
class Residency:
    """`names`: the models to serve; None: every promoted one, of which as many are loaded as `most` bytes allow."""

    names: frozenset[str] | None = None
    most: float = float("inf")

    @staticmethod
    def of(names: str, megabytes: float) -> "Residency":
        """`names`: by comma."""
        listed = frozenset(filter(None, (it.strip() for it in names.split(","))))
        return Residency(listed or None, megabytes * 1e6)

    def serves(self, name: str) -> bool:
        return self.names is None or name in self.names

    def loaded(self, uses: Mapping[str, Use]) -> frozenset[str]:
        """The models that are loaded, or to be: those with calls in flight, then the most recently used ones."""
        if self.names is not None:
            return frozenset(uses)
        order = sorted(uses, key=lambda name: (not uses[name].busy, -uses[name].last, not uses[name].loaded, name))
        chosen, left = set[str](), self.most
        for name in order:
            use = uses[name]
            if use.busy or use.size <= left:
                chosen.add(name)
                left -= use.size
        return frozenset(chosen)


#: Every promoted model, all of them loaded.
ALL = Residency()
