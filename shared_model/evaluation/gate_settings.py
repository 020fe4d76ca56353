"""Settings of the gate: what a release may lose against its fp32 reference, and how long its calls may take."""

from dataclasses import dataclass

from shared_model.settings import NOT_NEGATIVE, POSITIVE, Check, setting

_SHARE = Check(lambda value: 0 < value <= 1, "a share above 0 and at most 1")

_SHARE_OR_NONE = Check(lambda value: 0 <= value <= 1, "a share from 0 to 1")


@dataclass(frozen=True)
class GateSettings:
    """Bounds of the gate.

    The latency lane promises a p95 of 50 ms at a utilisation of 0.60. With random arrivals and equal service times,
    95 % wait less than 2.84 service times before they are served: a call may take at most 50 / 3.84 = 13 ms. A full
    batch of the throughput lane must end within that lane's p95 of 500 ms.
    """

    gate_min_agreement: float = setting(
        0.99,
        "Least share of texts with a clear label (fp32's margin at least 0.10) on which a variant agrees with fp32; "
        "refused if the upper bound of the share is below.",
        _SHARE,
    )
    gate_min_labelled_agreement: float = setting(
        0.97, "Least share of all labelled texts on which a variant agrees with fp32.", _SHARE
    )
    gate_max_accuracy_drop: float = setting(
        0.3, "Most points of accuracy a variant may lose; refused if it loses more, and significantly.", NOT_NEGATIVE
    )
    gate_min_accuracy: float = setting(
        0.0, "Least accuracy of fp32 on labelled texts, a share; 0: none is asked for.", _SHARE_OR_NONE
    )
    gate_beat_chance: bool = setting(True, "Whether fp32 must be right clearly more often than chance.")
    gate_max_active_drop: float = setting(
        1.0, "Most points of accuracy below the active release's on the same labelled texts.", NOT_NEGATIVE
    )
    gate_latency_ms: float = setting(
        13.0, "Longest median call of INT8 with one text of 32 tokens; a host above it is marked slow.", POSITIVE
    )
    gate_batch_ms: float = setting(500.0, "The same for half precision with 64 texts of 32 tokens.", POSITIVE)
