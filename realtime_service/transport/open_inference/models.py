"""The served models, their inputs and outputs. A model of the protocol is a release name, its version a release id."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from protos.inference import open_inference_pb2 as pb
from realtime_service.errors import NotFound
from realtime_service.models.registry import Model, Serving
from realtime_service.rollout.rollout import Rollout
from realtime_service.transport.open_inference.requests import ABSTAINED, LABEL, SCORES, TEXT, TEXT_PAIR, InferRequest
from shared_model.errors import BadInput
from shared_model.releases.manifest import name_of
from shared_model.types import MAX_TEXTS

SERVER = "tandem"
VERSION = "0.1.0"
#: Only extensions that are implemented, because a client uses those that it finds.
EXTENSIONS = ("model_repository", "schedule_policy", "model_configuration", "statistics", "parameters")

_BATCH = -1
_CONFIG_TYPES: Mapping[str, "pb.DataType"] = {"BYTES": pb.TYPE_STRING, "FP32": pb.TYPE_FP32, "BOOL": pb.TYPE_BOOL}


@dataclass(frozen=True, slots=True)
class Tensor:
    """`dims`: of one text. `first_column`: the place of an output's scores among those of all heads. `head`: the
    place of an output's head among all."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    first_column: int = 0
    head: int = 0


def inputs(model: Model) -> list[Tensor]:
    names = (TEXT, TEXT_PAIR) if model.encoder.reads.pairs else (TEXT,)
    return [Tensor(name, "BYTES", (1,)) for name in names]


def outputs(model: Model) -> list[Tensor]:
    """Of each head its scores, where they are ranked, of the first alone, its best label, and whether it abstained."""
    found = []
    for head, (spec, columns) in enumerate(zip(model.heads.specs, model.heads.columns, strict=True)):
        first = head == 0
        suffix = "" if first else f"_{spec.name}"
        found.append(Tensor(f"{SCORES}{suffix}", "FP32", (spec.output.width,), columns.start))
        found += [Tensor(LABEL, "BYTES", ())] if first and spec.output.ranked else []
        found += [Tensor(f"{ABSTAINED}{suffix}", "BOOL", (), head=head)] if spec.output.abstains else []
    return found


def loaded(serving: Serving, name: str, version: str) -> list[Model]:
    """Models of this name, the active one first; of all versions if `version` is empty. Raises: NotFound."""
    actives = {roles.active for roles in serving.by_name.values()}
    ids = sorted(serving.models, key=lambda release: release not in actives)
    found = [serving.models[it] for it in ids if name == name_of(it) and version in ("", it)]
    if not found:
        asked = f"{name!r}, version {version!r}," if version else f"{name!r}"
        raise NotFound(f"model_name: {asked} is not served here; this is {serving.default_name!r}")
    return found


def elsewhere(serving: Serving, served: Collection[str], name: str, version: str) -> str | None:
    """The release to ask another replica for, among those that others have `served`; "" for the one that should answer.
    None if this process has the model, or no replica has it."""
    if any(name == name_of(it) and version in ("", it) for it in serving.models):
        return None
    if name in serving.others:
        return version
    found = [it for it in served if name == name_of(it) and version in ("", it)]
    if not version and serving.active in found:
        return ""
    return found[0] if found else None


def choose(serving: Serving, name: str, version: str, caller: str) -> Model:
    """The model that answers: the named version; else the caller's release, if it has this name; else one that has.

    Raises: NotFound.
    """
    found = loaded(serving, name, version)
    drawn = serving.models.get(serving.roles(serving.other(name)).choose(caller))
    return drawn if drawn in found else found[0]


def wanted(request: InferRequest, model: Model) -> list[Tensor]:
    """The requested outputs in their order, all by default. Raises: BadInput, also if pairs do not fit the model."""
    takes, gives = [it.name for it in inputs(model)], {it.name: it for it in outputs(model)}
    if bool(request.text_pairs) != (TEXT_PAIR in takes):
        raise BadInput(TEXT_PAIR, f"{'is given' if request.text_pairs else 'is missing'}; this model reads {takes}")
    for name in request.outputs:
        if name not in gives:
            raise BadInput(name, f"is not an output; there are {', '.join(gives)}")
    return [gives[name] for name in request.outputs or gives]


def metadata(found: list[Model]) -> pb.ModelMetadataResponse:
    """`found`: models of one name."""
    model = found[0]
    return pb.ModelMetadataResponse(
        name=name_of(model.release),
        versions=[it.release for it in found],
        platform=SERVER,
        inputs=[_metadata(tensor) for tensor in inputs(model)],
        outputs=[_metadata(tensor) for tensor in outputs(model)],
    )


def config(model: Model) -> pb.ModelConfig:
    facts = {
        "labels": json.dumps(model.output.names, ensure_ascii=False),
        "output": model.output.kind,
        "max_tokens": str(model.encoder.reads.max_tokens),
        "release": model.release,
    }
    if model.heads.further:
        listed = [{"name": it.name, "output": it.output.kind, "labels": it.output.names} for it in model.heads.specs]
        facts["heads"] = json.dumps(listed, ensure_ascii=False)
    return pb.ModelConfig(
        name=name_of(model.release),
        platform=SERVER,
        backend=SERVER,
        max_batch_size=MAX_TEXTS,
        input=[pb.ModelInput(name=it.name, data_type=_CONFIG_TYPES[it.datatype], dims=it.dims) for it in inputs(model)],
        output=[
            pb.ModelOutput(name=it.name, data_type=_CONFIG_TYPES[it.datatype], dims=it.dims) for it in outputs(model)
        ],
        dynamic_batching=pb.ModelDynamicBatching(priority_levels=3, default_priority_level=2),
        parameters={name: pb.ModelParameter(string_value=value) for name, value in facts.items()},
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=False),
    )


def index(
    serving: Serving, rollout: Rollout | None, ready_only: bool, internals: bool
) -> Iterator[pb.RepositoryIndexResponse.ModelIndex]:
    """The loaded releases and, unless `ready_only`, those that are being loaded or were found unfit; `internals`: also
    why."""
    entry = pb.RepositoryIndexResponse.ModelIndex
    for release in serving.models:
        yield entry(name=name_of(release), version=release, state="READY")
    if ready_only or rollout is None:
        return
    if rollout.loading:
        yield entry(name=name_of(rollout.loading), version=rollout.loading, state="LOADING")
    for release, failure in rollout.failures.items():
        why = failure.why if internals else ""
        yield entry(name=name_of(release), version=release, state="UNAVAILABLE", reason=why)


def _metadata(tensor: Tensor) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype, shape=(_BATCH, *tensor.dims)
    )
