"""The store of releases: `ROOT/<name>/<id>/`. Each file is read once, so the loaded bytes are the verified bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from shared_model.encoding import Encoder
from shared_model.engine import Engine, open_engine
from shared_model.errors import ReleaseError, UnknownRelease
from shared_model.heads import Heads
from shared_model.output import OutputSpec
from shared_model.releases import manifest as manifests
from shared_model.releases import revocation, signature
from shared_model.releases.files import Files, open_files, reason
from shared_model.releases.manifest import Facts, Manifest, Variant
from shared_model.settings import StateSettings
from shared_model.trust import keyring
from shared_model.trust.ed25519 import PublicKeys
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring
from shared_model.trust.verified_cache import VerifiedCache
from shared_model.types import WHOLE, Device, Precision, Spread

#: The cache of compiled graphs, in the state folder.
COMPILED = "compiled"


@dataclass(frozen=True)
class Release:
    """An opened release. Its files are read and verified on demand.

    Notes lie beside the release's files and outside its id: reports, attestations, signatures. `verdict_keys`: public
    keys, one of which must have signed the gate's verdict; none: any verdict counts. `cache`: of compiled graphs.
    """

    files: Files
    manifest: Manifest
    verdict_keys: Callable[[], PublicKeys] = tuple
    cache: VerifiedCache | None = None

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def output(self) -> OutputSpec:
        """That of its first head."""
        return self.manifest.output

    @property
    def heads(self) -> Heads:
        return self.manifest.heads

    @property
    def labels(self) -> tuple[str, ...]:
        return self.manifest.labels

    @property
    def place(self) -> str:
        """Its location, for messages."""
        return f"{self.files.root}/{self._path()}"

    def read(self, path: str) -> bytes:
        """The verified bytes of one file. Raises: ReleaseError naming the file."""
        if path not in self.manifest.files:
            raise ReleaseError(f"release {self.id} holds no {path}")
        try:
            data = self.files.read(self._path(path))
        except OSError as error:
            raise ReleaseError(f"release {self.id}: {path} cannot be read: {reason(error)}") from error
        if manifests.sha256(data) != self.manifest.files[path]:
            raise ReleaseError(f"release {self.id}: {path} does not match its sha256; copy the release again")
        return data

    def encoder(self) -> Encoder:
        return Encoder(self.read("tokenizer.json"), self.manifest.reads, self.id)

    def engine(
        self, precision: Precision, device: Device, threads: int, streams: int = 1, spread: Spread = WHOLE
    ) -> Engine:
        """See `open_engine`. Raises: ReleaseError if the release lacks the variant, or one of its files is damaged."""
        variant = self.manifest.variant(precision, device)
        files = {name: self.read(path) for name, path in variant.files.items()}
        return open_engine(precision, device, files, threads, streams, spread, self.cache)

    def verify(self) -> None:
        """Verify every file. Raises: ReleaseError naming the first that is damaged."""
        for path in self.manifest.files:
            self.read(path)

    def file_size(self, path: str) -> int:
        """Bytes of one file. Raises: ReleaseError naming the file."""
        try:
            return self.files.size(self._path(path))
        except OSError as error:
            raise ReleaseError(f"release {self.id}: {path} cannot be read: {reason(error)}") from error

    def size(self, variant: Variant) -> int:
        """Bytes of the files a variant is opened from."""
        return sum(map(self.file_size, set(variant.files.values())))

    def read_note(self, name: str) -> bytes | None:
        """A note's bytes; None if it does not exist. Raises: ReleaseError if it cannot be read."""
        path = self._path(manifests.check_note(self.manifest, name))
        try:
            return self.files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReleaseError(f"release {self.id}: {name} cannot be read: {reason(error)}") from error

    def write_note(self, name: str, data: bytes) -> None:
        """Raises: OSError if this process may not write there."""
        self.files.write(self._path(manifests.check_note(self.manifest, name)), data)

    def _path(self, path: str = "") -> str:
        return "/".join(part for part in (self.manifest.name, self.id, path) if part)


class Store:
    """The releases under one root, a local folder or a URL.

    `trusted`: public keys, one of which must have signed a release to open it; None: signatures are not checked.
    `compiled`: the folder of compiled graphs; None: each engine compiles its own.
    """

    def __init__(
        self,
        root: str | Path,
        trusted: PublicKeys | None = None,
        load_keys: Callable[[], Keyring] = lambda: WITHOUT_KEYS,
        revoked: str = "",
        compiled: Path | None = None,
    ) -> None:
        """`load_keys`: those of the operators; called where they are needed, since it may make them. `revoked`: see
        `releases.revocation`. Raises: SettingError for an unsupported URL."""
        self.files = open_files(root)
        self._trusted = trusted
        self._revoked = revoked
        self._load_keys = load_keys
        self._keys: Keyring | None = None
        self._cache = VerifiedCache(compiled, lambda: self.keys.cluster) if compiled else None

    @classmethod
    def from_settings(cls, state: StateSettings) -> "Store":
        """The store that the settings name. Raises: SettingError."""
        keys, trusted = partial(keyring.load, state), signature.trusted_keys(state)
        return cls(state.releases_root, trusted, keys, state.revoked, state.state / COMPILED)

    @property
    def keys(self) -> Keyring:
        """The operators' keys, by which the pointer to these releases is signed. Raises: SettingError."""
        if self._keys is None:
            self._keys = self._load_keys()
        return self._keys

    def reload_keys(self) -> None:
        self._keys = None

    def open(self, release_id: str) -> Release:
        """Raises: UnknownRelease if it does not exist, ReleaseError if its manifest does not match its id or no trusted
        key signed it, or it is revoked."""
        revocation.check(release_id, self._revoked)
        release = self._open(release_id)
        if self._trusted is not None:
            signature.check(release.manifest, release.read_note(signature.NOTE), self._trusted)
        return release

    def ids(self) -> list[str]:
        """All release ids, oldest first. Raises: ReleaseError if the root cannot be read."""
        try:
            found = [path.split("/") for path in self.files.manifests()]
        except OSError as error:
            raise ReleaseError(f"{self.files.root} cannot be read: {reason(error)}") from error
        return [folder for name, folder, _ in found if manifests.is_id(folder) and manifests.name_of(folder) == name]

    def built(self, release_id: str) -> datetime:
        """The time at which a release was written here. Raises: OSError."""
        return self.files.modified(f"{_folder(release_id)}/{manifests.FILE}")

    def size(self, release_id: str) -> int:
        """Total bytes of a release's folder. Raises: OSError."""
        return self.files.folder_size(_folder(release_id))

    def remove(self, release_id: str) -> None:
        """Remove a release. The caller checks that it is not in use. Raises: ReleaseError."""
        try:
            self.files.remove_folder(_folder(release_id))
        except OSError as error:
            raise ReleaseError(f"release {release_id} cannot be removed: {reason(error)}") from error

    def seal(self, files: Mapping[str, bytes], facts: Facts) -> Release:
        """Write an unsigned release atomically: a reader sees all of it or nothing.

        Raises: ReleaseError for a bad name or path; OSError if this process may not write there.
        """
        manifests.check_name(facts.name)
        sealed = Manifest(**vars(facts), files={path: manifests.sha256(data) for path, data in sorted(files.items())})
        manifests.check_paths(sealed)
        try:
            return self._open(sealed.id)
        except UnknownRelease:
            self.files.write_folder(f"{sealed.name}/{sealed.id}", {**files, manifests.FILE: sealed.to_json()})
        return self._open(sealed.id)

    def _open(self, release_id: str) -> Release:
        path = f"{_folder(release_id)}/{manifests.FILE}"
        try:
            raw = self.files.read(path)
        except FileNotFoundError as error:
            missing = f"release {release_id} is not in {self.files.root}; build it or copy it there"
            raise UnknownRelease(missing) from error
        except OSError as error:
            unread = f"release {release_id}: {manifests.FILE} cannot be read: {reason(error)}"
            raise ReleaseError(unread) from error
        return Release(self.files, manifests.parse(raw, release_id), self._verdict_keys, self._cache)

    def _verdict_keys(self) -> PublicKeys:
        return () if self.keys.accept_unsigned else (*(self._trusted or ()), *self.keys.operators)


def _folder(release_id: str) -> str:
    """Raises: ReleaseError for an invalid id."""
    return f"{manifests.name_of(release_id)}/{release_id}"
