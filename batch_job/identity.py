"""Which input a run reads, which model scores it, and the tables that hold its history.

A day is compared with earlier days of the same input, and its scores stand beside those alone. An input is known by
where its days are and which texts of them are read; what they are written as may change. Scored with another model than
the default one it is another input, with a history of its own.
"""

import hashlib
import os
import re
import string
from dataclasses import dataclass

from batch_job.run_record import ARCHIVE, COLUMNS
from batch_job.settings import InputSettings
from shared_model import settings
from shared_model.objects import Location, join, open_objects
from shared_model.settings import StateSettings

#: Most characters of a folder's name that say which input it is of, before those that tell it from all others.
_READABLE = 40
#: The end of a name, where another model than the default one scores.
_MODEL = re.compile(r", model ([a-z0-9-]+)\Z")


@dataclass(frozen=True)
class Tables:
    """Folders of the two tables."""

    scores: Location
    quarantine: Location

    @property
    def folders(self) -> tuple[Location, Location]:
        return self.scores, self.quarantine

    @classmethod
    def for_input(cls, state: StateSettings, identity: str = ARCHIVE) -> "Tables":
        """Those of an input: in a folder of its own, but for the default archive and where TANDEM_SCORES names one,
        both of which are the default model's."""
        if identity == ARCHIVE or (state.scores and not model_of(identity)):
            return cls(state.scores_table, state.quarantine_table)
        literal = re.sub(r"\w*=?\{[^}]*\}", "", identity)
        readable = "-".join(re.findall("[A-Za-z0-9]+", literal))[-_READABLE:].strip("-").lower()
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        return cls._in(join(_own_folders(state), f"{readable or 'input'}-{digest}"))

    @classmethod
    def all(cls, state: StateSettings) -> list["Tables"]:
        """Those of the default archive, or of TANDEM_SCORES, and of every other input."""
        own = _own_folders(state)
        return [cls.for_input(state), *(cls._in(join(own, name)) for name in sorted(open_objects(own).folders()))]

    @classmethod
    def _in(cls, folder: Location) -> "Tables":
        return cls(join(folder, "scores"), join(folder, "quarantine"))


def template(state: StateSettings, inputs: InputSettings) -> str:
    """Where the input's days are: a URL or an absolute path, its day in braces or, without, a partition of it."""
    path = inputs.input_path or _literally(state.messages_dir)
    # Spark may have another working directory.
    return path if "://" in path else os.path.abspath(path)


def has_day(path: str) -> bool:
    return any(field for _, field, _, _ in string.Formatter().parse(path))


def input_name(state: StateSettings, inputs: InputSettings) -> str:
    """The name of an input: people read it, and records and commits are compared by it."""
    scored = f", model {inputs.nightly_model}" * bool(inputs.nightly_model)
    path = template(state, inputs).rstrip("/")
    if path == _literally(join(state.store_root, "messages")):
        return f"{ARCHIVE}{scored}"
    days = path if has_day(path) else f"{path}/{inputs.input_partition}={{ds}}"
    texts = [name for name in (inputs.input_text, inputs.input_pair) if name]
    named = days if texts == [COLUMNS.text] else f"{days} ({' and '.join(texts)})"
    return f"{named}{scored}"


def model_of(identity: str) -> str:
    """The model that scores an input; "" for the default one."""
    found = _MODEL.search(identity)
    return found[1] if found else ""


def configured_input(state: StateSettings) -> str:
    """The name of the input that the environment sets. Raises: SettingError."""
    return input_name(state, settings.load(InputSettings))


def describe(state: StateSettings, identity: str) -> str:
    """The name, and of the default archive where that is."""
    return f"{identity}, {join(state.store_root, 'messages')}" if identity == ARCHIVE else identity


def _own_folders(state: StateSettings) -> Location:
    return join(state.store_root, "inputs")


def _literally(path: Location) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")
