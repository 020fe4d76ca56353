"""The options of a run that its executors need."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_job.settings import NightlySettings
from shared_model import devices
from shared_model.devices import HALF_PRECISION
from shared_model.errors import SettingError
from shared_model.evaluation import attestation
from shared_model.releases import signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import keyring
from shared_model.trust.ed25519 import PublicKeys
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring
from shared_model.types import WHOLE, Device, Precision, Spread


@dataclass(frozen=True)
class ScoringOptions:
    """All that an executor needs to know. `releases_root` is a folder or a URL that every executor reaches;
    `trusted_keys` and `keys` are the driver's, public ones only, so that no file of keys need lie where executors run.
    `batch_rows`, `batch_tokens`: limits of a batch, 0 for those of the engine. `state`: folder of an executor's own
    state, for what it measures once; empty: nothing is kept. `deduplicate`: equal texts of a window run once. `idle`:
    workers run at idle priority. `int8`: in INT8 where that is there, on CPU. `poison`: texts of a task that may fail
    by themselves. `ranks`: GPUs that score each batch together."""

    releases_root: str
    release: str
    device: Device
    batch_rows: int = 0
    batch_tokens: int = 0
    state: str = ""
    trusted_keys: PublicKeys | None = None
    keys: Keyring = WITHOUT_KEYS
    deduplicate: bool = True
    idle: bool = False
    int8: bool = False
    poison: int = 0
    ranks: int = 1

    @classmethod
    def from_settings(
        cls, state: StateSettings, nightly: NightlySettings, release: str, device: Device
    ) -> "ScoringOptions":
        """Raises: SettingError where a file of keys is wrong."""
        return cls(
            releases_root=state.releases_root,
            release=release,
            device=device,
            batch_rows=nightly.nightly_batch_rows,
            batch_tokens=nightly.nightly_batch_tokens,
            state=str(state.state),
            trusted_keys=signature.trusted_keys(state),
            keys=keyring.read(state).public,
            deduplicate=nightly.nightly_collapse,
            idle=nightly.nightly_idle,
            int8=nightly.nightly_int8,
            poison=nightly.nightly_poison,
            ranks=nightly.nightly_tensor_parallel,
        )

    @property
    def precision(self) -> Precision:
        """The requested precision; an engine may have to compile another."""
        return Precision.INT8 if self.int8 and self.device is Device.CPU else HALF_PRECISION[self.device]

    @property
    def compiled(self) -> tuple[Precision, ...]:
        """The precisions that engines may compile for it: a CPU without BF16 computes in FP32."""
        return (Precision.BF16, Precision.FP32) if self.precision is Precision.BF16 else (self.precision,)

    def store(self) -> Store:
        return Store(self.releases_root, self.trusted_keys, lambda: self.keys)

    def spread(self, gpus: Sequence[int] = ()) -> Spread:
        """`gpus`: those that Spark gave the task. Raises: SettingError without enough of them."""
        there = len(gpus) or devices.gpus()
        if self.ranks > max(1, there):
            raise SettingError(
                f"TANDEM_NIGHTLY_TENSOR_PARALLEL='{self.ranks}': expected at most the number of GPUs that a task has, "
                f"which is {there}"
            )
        return Spread(self.ranks, gpus=tuple(gpus))

    def proven(self, spread: Spread = WHOLE) -> Release:
        """The release, whose variant may serve on this host. Raises: ReleaseError."""
        release = self.store().open(self.release)
        # Its lane has all cores, whatever Spark gives one of the tasks that run side by side.
        attestation.ensure(release, self.precision, self.device, devices.cores(), spread)
        return release
