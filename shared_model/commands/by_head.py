"""Options that are given once for each head, as `[HEAD=]VALUE`."""

from collections.abc import Sequence

from shared_model.errors import BadInput
from shared_model.heads import Heads


def parse(option: str, given: Sequence[str], heads: Heads) -> dict[str, str]:
    """The value of each head by name; without a name it is the first head's. Raises: BadInput for a head that is named
    twice."""
    names = [spec.name for spec in heads.specs]
    found: dict[str, str] = {}
    for argument in given:
        name, equals, value = argument.partition("=")
        # A value may hold the sign, too.
        name, value = (name, value) if equals and name in names else (heads.first.name, argument)
        if name in found:
            raise BadInput(option, f"is given twice for the head {name}; the heads are {', '.join(names)}")
        found[name] = value
    return found
