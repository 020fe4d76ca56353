"""How texts become batches: by the rule that their engine declares, within the memory of its device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from batch_job.scoring.ceilings import Ceilings, DeviceKey
from batch_job.scoring.token_budget import BudgetKey, TokenBudget
from shared_model.batches import Batch, Batching, pack, packed_ends
from shared_model.encoding import Encoding, collate, fine_bucket, plan_batches
from shared_model.engine import Engine
from shared_model.types import Device

#: Tokens of a text for which a batch's worth of packed texts is tokenised at a time.
_USUAL_TOKENS = 16
#: Rows of a padded batch on CPU; elsewhere tokens are the only limit.
_CPU_ROWS = 64
#: The folder of the token budgets in the state of a host.
_FOLDER = "devices"

#: Memory limits of the devices of this process.
_CEILINGS, _BUDGETS = Ceilings(), dict[tuple[DeviceKey, str, int], TokenBudget]()


class Cutting(Protocol):
    """One rule. `lengths`: tokens of texts that are in no batch yet."""

    @property
    def texts_ahead(self) -> int | None:
        """Texts that are tokenised before some of them are cut; None: all of a window."""

    def plan(self, lengths: Sequence[int], last: bool) -> list[Sequence[int]]:
        """Batches, as places of texts; `last`: no texts follow, so all of them are in one."""

    def fitting(self, lengths: Sequence[int]) -> int:
        """How many of the first of these texts may run at once, at least one."""

    def did_not_fit(self, lengths: Sequence[int]) -> None:
        """A batch of these texts was too large for the memory: next time about half of it runs."""

    def batch(self, encodings: Sequence[Encoding]) -> Batch:
        """Texts as the engine takes them."""

    def size(self, lengths: Sequence[int]) -> int:
        """Tokens that run in a batch of these texts, padding included."""


class Buckets:
    """Batches of one padded width, cut from a whole window. `few_shapes`: see `plan_batches`."""

    texts_ahead = None

    def __init__(self, where: DeviceKey, rows: int, tokens: int, few_shapes: bool, ceilings: Ceilings) -> None:
        self._where, self._rows, self._tokens = where, rows, tokens
        self._few_shapes, self._ceilings = few_shapes, ceilings

    def plan(self, lengths: Sequence[int], last: bool) -> list[Sequence[int]]:
        planned = plan_batches(lengths, self._rows, self._tokens, fine_bucket, self._few_shapes) if last else []
        return [part for rows in planned for part in self._parts(rows, lengths[rows[0]])]

    def fitting(self, lengths: Sequence[int]) -> int:
        return self._ceilings.most(self._where, lengths[0], len(lengths))

    def did_not_fit(self, lengths: Sequence[int]) -> None:
        self._ceilings.too_many(self._where, lengths[0], len(lengths))

    def batch(self, encodings: Sequence[Encoding]) -> Batch:
        return collate(encodings, fine_bucket)

    def size(self, lengths: Sequence[int]) -> int:
        return len(lengths) * fine_bucket(max(lengths))

    def _parts(self, rows: Sequence[int], longest: int) -> list[Sequence[int]]:
        most = self._ceilings.most(self._where, longest, len(rows))
        return [rows[start : start + most] for start in range(0, len(rows), most)]


class Packed:
    """Batches of any texts in their order, cut by tokens."""

    def __init__(self, budget: TokenBudget) -> None:
        self._budget = budget

    @property
    def texts_ahead(self) -> int:
        return max(1, self._budget.tokens // _USUAL_TOKENS)

    def plan(self, lengths: Sequence[int], last: bool) -> list[Sequence[int]]:
        ends = packed_ends(lengths, self._budget.tokens)
        batches: list[Sequence[int]] = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        return batches if last else batches[:-1]

    def fitting(self, lengths: Sequence[int]) -> int:
        return packed_ends(lengths, self._budget.tokens)[0]

    def did_not_fit(self, lengths: Sequence[int]) -> None:
        self._budget.halve(sum(lengths))

    def batch(self, encodings: Sequence[Encoding]) -> Batch:
        return pack(encodings)

    def size(self, lengths: Sequence[int]) -> int:
        return sum(lengths)


def cutting(engine: Engine, where: DeviceKey, rows: int, tokens: int, state: str) -> Cutting:
    """The rule for an engine. `rows`, `tokens`: limits of a batch, 0 for those of the engine. `state`: the host's, for
    what is measured once; empty: nothing is kept."""
    if engine.batching is Batching.BUCKETS:
        on_cpu = engine.device is Device.CPU
        most_rows = rows or (_CPU_ROWS if on_cpu else engine.bulk_tokens())
        return Buckets(where, most_rows, tokens or engine.bulk_tokens(), on_cpu, _CEILINGS)
    key = (where, engine.hardware, tokens)
    if key not in _BUDGETS:
        release, _ = where
        variant = f"{engine.precision}/{engine.device}"
        # A number that a person has set is not kept for runs without it.
        folder = Path(state) / _FOLDER if state and not tokens else None
        named = BudgetKey(release, variant, engine.hardware)
        _BUDGETS[key] = TokenBudget(folder, named, lambda: tokens or engine.bulk_tokens())
    return Packed(_BUDGETS[key])
