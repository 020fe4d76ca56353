"""Formats answers and descriptions of a service for a terminal."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Answer
from shared_model.types import HeadScore, Score

#: Follows an answer that abstains.
ABSTAINED = ", abstained"
#: Most labels in a description, of which there may be thousands.
_LABELS = 5
_STATES = {
    scoring_pb2.RELEASE_ACTIVE: "active",
    scoring_pb2.RELEASE_CANARY: "canary",
    scoring_pb2.RELEASE_LOADING: "loading, takes no calls yet",
    scoring_pb2.RELEASE_FAILED: "failed, takes no calls",
}


def answer(answer: Answer, seconds: float) -> str:
    """`seconds`: of the whole call, connecting included."""
    lines = []
    for result in answer.results:
        lines += _head(result)
        for name, head in result.heads.items():
            lines += [f"{name}{ABSTAINED if head.abstained else ''}:", *(f"  {line}" for line in _head(head))]
        cut = ", truncated" if result.truncated else ""
        lines.append(f"  {result.tokens} tokens{cut}{ABSTAINED if result.abstained else ''}")
    lines.append(
        f"  {answer.path} path ({answer.reason}), {answer.precision}, batch {answer.batch_size}, {answer.release}"
    )
    waited, computed = answer.queue_us / 1000, answer.compute_us / 1000
    lines.append(f"  waited {waited:.2f} ms, computed {computed:.2f} ms, {seconds * 1000:.1f} ms with the connection")
    return "\n".join(lines)


def _head(result: Score | HeadScore) -> list[str]:
    lines = [f"{label.name:<44}{label.score:8.3f}" for label in result.labels]
    if result.vector:
        start = ", ".join(f"{number:.3f}" for number in result.vector[:5])
        lines.append(f"embedding of {len(result.vector)} numbers: {start}, …")
    return lines


def answer_data(answer: Answer) -> dict[str, Any]:
    """The same for programs."""
    data = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer) if field.name != "message"}
    results = (dataclasses.replace(result, heads=dict(result.heads)) for result in answer.results)
    return {**data, "results": [dataclasses.asdict(result) for result in results]}


def operators_policy(numbers: Mapping[str, float]) -> str:
    """One line with the numbers that operators have set; empty without any."""
    if not numbers:
        return ""
    shown = " ".join(f"{name}={numbers[name]:.10g}" for name in sorted(numbers))
    return f"operators' policy in force: {shown} (`policy reset --all` undoes it)"


def description_data(described: scoring_pb2.DescribeResponse) -> dict[str, Any]:
    return json_format.MessageToDict(
        described, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def description(described: scoring_pb2.DescribeResponse) -> str:
    reads = "pairs of texts" if described.pairs else "texts"
    lines = [
        f"release    {described.release or 'none: a router'}",
        f"reads      {reads} of up to {described.max_tokens} tokens",
        f"gives      {_output(described.labels, described.output)}",
        # Those of the others: the first gives what the line above says.
        *(f"  {head.name:<9}{_output(head.labels, head.output)}" for head in described.heads[1:]),
        *([f"models     {', '.join(map(_model, described.models))}"] if len(described.models) > 1 else []),
        f"redis      {'available' if described.redis_available else 'not reached: Score answers, Submit does not'}",
        operators_policy(described.operators_policy) or "policy     that of the settings: operators have set nothing",
        "\nlanes",
        *map(_lane, described.lanes),
        "\nreleases",
        *map(_release, described.releases),
        "\nreplicas",
        *map(_replica, described.replicas),
    ]
    return "\n".join(lines)


def _model(model: scoring_pb2.ModelDescription) -> str:
    return f"{model.name}{' (default)' * model.is_default}{'' if model.release else ' (not loaded here)'}"


def _output(names: Sequence[str], output: str) -> str:
    kind = output.replace("_", " ")
    if not names:
        return kind
    more = f", … ({len(names)} in all)" if len(names) > _LABELS else ""
    return f"{kind}: {', '.join(names[:_LABELS])}{more}"


def _lane(lane: scoring_pb2.LaneDescription) -> str:
    state = "serving" if lane.serving else "not serving"
    slow = f", slow here: {lane.call_ms:.1f} of {lane.call_budget_ms:g} ms" if lane.slow_here else ""
    targets = [f"p95 {lane.p95_target_ms:g} ms"] * bool(lane.p95_target_ms)
    targets += [f"{lane.rate_target:g} requests/s"] * bool(lane.rate_target)
    return (
        f"  {lane.name:<11}{state:<12}{lane.precision} on {lane.device}, batches up to {lane.max_batch_size}, "
        f"{lane.waiting} texts waiting (holds {lane.max_concurrent_requests}), "
        f"target: {', '.join(targets) or 'none'}{slow}"
    )


def _release(release: scoring_pb2.ReleaseDescription) -> str:
    share = f", answers {release.share:.4g} of the callers" if release.share else ""
    return f"  {release.id}  {_STATES[release.state]}{share}{release.failure and ': ' + release.failure}"


def _replica(replica: scoring_pb2.ReplicaDescription) -> str:
    state = "draining" if replica.draining else "in service"
    return f"  {replica.id}  {replica.address}  {state}  {replica.release or 'a router'}"
