"""The groups of figures: each runs its loads on a stage and returns figure → value of one round."""

from tests.benchmarks import replicas
from tests.benchmarks.online.stage import SETTLE_SECONDS, Stage
from tests.load import arrivals, echo
from tests.load.calls import LEAST_CALLS, Calls, quantile
from tests.load.child import Child
from tests.load.plans import Plan

Figures = dict[str, float]

#: The interactive deadline.
DEADLINE_MS = 50
#: Calls in flight of the throughput lane.
BULK_IN_FLIGHT = 128
_BULK_SECONDS = 10.0
#: Bulk work has found its batch size when interactive work joins it, or when it has long been alone.
_BULK_SETTLE_SECONDS = 2.0
_BLOCKS, _BLOCK_TEXTS = 3, 600
_BLOCK_SECONDS = 4.0
#: About as long as client, transport and service take for a call beside its engine.
_PAUSE_SECONDS = 0.0015
_SAMPLE = 1_500
_REPLAY_SECONDS = 60.0
_SLEEP_SECONDS = 10.0
#: Bytes of a typical answer.
_REPLY_BYTES = 220


def overhead(stage: Stage) -> Figures:
    """One request in flight, in turn with the bare engine on the same texts. An engine is slower after a pause, as any
    service makes between two calls of one caller: that part is printed, and counts."""
    bare, served = list[float](), list[float]()
    for _ in range(_BLOCKS):
        texts = stage.interactive(_BLOCK_TEXTS)
        bare.append(_bare_p50(stage, texts))
        _bare_p50(stage, texts, _PAUSE_SECONDS)
        plan = Plan(address=stage.address, texts=texts, seconds=60.0, once=True, priority="REAL_TIME")
        served.append(stage.run("one in flight", plan).p50())
    return {"overhead_ms": quantile(served, 0.5) - quantile(bare, 0.5)}


def saturation(stage: Stage) -> Figures:
    """Batch-1 capacity against what the engine alone does, and against what engine, tokeniser and transport cost."""
    blocks = [_saturation(stage) for _ in range(_BLOCKS)]
    rate, engine, floor = (quantile(column, 0.5) for column in zip(*blocks, strict=True))
    return {"saturation_of_floor": rate / floor, "saturation_of_engine": rate / engine}


def _saturation(stage: Stage) -> tuple[float, float, float]:
    """Texts per second of the service, of its best engine alone, and at the floor."""
    rate, texts = stage.saturate(_BLOCK_SECONDS), stage.interactive(_SAMPLE)
    runs = [stage.bare.ask(what="saturated", texts=texts, streams=s, width=w, seconds=2.0) for s, w in stage.shapes]
    costs = [
        stage.measured("bare engine, ms of CPU a text", min(run["cpu_ms"] for run in runs)),
        stage.measured("tokeniser, ms of CPU a text", stage.bare.ask(what="tokenise", texts=texts)["cpu_ms"]),
        stage.measured("gRPC echo, ms of CPU a call, both ends", _echo_cpu_ms(stage, texts)),
    ]
    engine = stage.measured("bare engine, texts/s", max(run["rate"] for run in runs))
    return rate, engine, stage.measured("floor, texts/s", stage.cores * 1000 / sum(costs))


def poisson(stage: Stage) -> Figures:
    bare = _bare_p50(stage, stage.interactive(_BLOCK_TEXTS))
    p95 = _interactive_alone(stage, 60).p95()
    return {"poisson60_tail": p95 / (5 * bare + 1)}


def mixed(stage: Stage) -> Figures:
    """Interactive calls alone, then beside bulk clients that always want more."""
    bulk_alone = _bulk_rate(_bulk_alone(stage))
    figures: Figures = {}
    for percent in (30, 60):
        alone = _interactive_alone(stage, percent).p95()
        interactive, bulk = _interactive_beside_bulk(stage, percent)
        p95, left = interactive.p95(), 1 - percent / 100
        figures[f"mixed{percent}_p95_ms"] = p95
        figures[f"mixed{percent}_over_alone"] = p95 / alone
        beside = bulk.rate(interactive.due[0], interactive.due[-1])
        figures[f"bulk_share{percent}"] = beside / (left * bulk_alone)
    return figures


def throughput(stage: Stage) -> Figures:
    before, calls, after = _bare_bulk(stage), _bulk_alone(stage), _bare_bulk(stage)
    return {
        "throughput_of_engine": _bulk_rate(calls) / ((before + after) / 2),
        "throughput_p95_ms": calls.p95(),
    }


def goodput(stage: Stage) -> Figures:
    """Recorded arrivals with a deadline: the share that is answered inside it; above the capacity, of capacity."""
    figures = {}
    for percent in (30, 60, 90, 200, 500):
        rate = stage.capacity * percent / 100
        due = arrivals.replayed(stage.material.recorded, rate, _REPLAY_SECONDS)
        calls = stage.run(
            f"goodput at {percent} % of C",
            Plan(
                address=stage.address,
                texts=stage.interactive(min(len(due), len(stage.material.interactive))),
                seconds=_REPLAY_SECONDS,
                due=due.tolist(),
                timeout_ms=DEADLINE_MS,
            ),
        )
        most = stage.capacity * _REPLAY_SECONDS
        good = calls.goodput(DEADLINE_MS) if percent <= 100 else calls.good(DEADLINE_MS) / most
        figures[f"goodput{percent}"] = good
    return figures


def sleep(stage: Stage) -> Figures:
    """Far more calls than an engine that sleeps can answer."""
    figures, refusals, module = Figures(), list[float](), "tests.load.sleeping"
    # A place of its own: a replica with other engines would take the calls that this one refuses.
    with replicas.place() as place, Child(module, str(place.store.files.root), place.first, place.redis_url) as child:
        service = child.opened
        for times in (2, 5, 10):
            due = arrivals.poisson(times * service["capacity"], _SLEEP_SECONDS, seed=times)
            plan = Plan(
                address=service["address"],
                texts=stage.interactive(1_000),
                seconds=_SLEEP_SECONDS,
                due=due.tolist(),
                timeout_ms=DEADLINE_MS,
            )
            calls = stage.run(f"sleep engine at {times} × C", plan)
            figures[f"sleep_x{times}"] = calls.good(DEADLINE_MS) / (_SLEEP_SECONDS * service["capacity"])
            refusals.append(quantile(calls.refusals_ms(), 0.99))
    return {**figures, "refusal_p99_ms": max(refusals)}


def _interactive_alone(stage: Stage, percent: int) -> Calls:
    return _settled(stage.run(f"interactive at {percent} % of C", _interactive(stage, percent)))


def _interactive_beside_bulk(stage: Stage, percent: int) -> tuple[Calls, Calls]:
    """(interactive, bulk)"""
    plan = _interactive(stage, percent)
    bulk = _bulk(stage, plan.seconds + 2 * _BULK_SETTLE_SECONDS)
    names = ("bulk", f"interactive at {percent} % of C beside it")
    beside, interactive = stage.run_together(names, (bulk, plan), (0.0, _BULK_SETTLE_SECONDS))
    return _settled(interactive), beside


def _interactive(stage: Stage, percent: int) -> Plan:
    """Poisson arrivals, long enough for a p95 and at least eight seconds; callers never cancel."""
    rate = stage.capacity * percent / 100
    seconds = SETTLE_SECONDS + max(8.0, 1.1 * LEAST_CALLS / rate)
    due = arrivals.poisson(rate, seconds, seed=percent)
    texts = stage.interactive(len(due))
    return Plan(address=stage.address, texts=texts, seconds=seconds, due=due.tolist(), priority="REAL_TIME")


def _settled(calls: Calls) -> Calls:
    return calls.due_from(calls.due[0] + SETTLE_SECONDS)


def _bulk(stage: Stage, seconds: float) -> Plan:
    texts = stage.bulk(round(2_000 * seconds))
    return Plan(address=stage.address, texts=texts, seconds=seconds, in_flight=BULK_IN_FLIGHT, priority="BATCH")


def _bulk_alone(stage: Stage) -> Calls:
    return stage.run("bulk alone", _bulk(stage, _BULK_SECONDS))


def _bulk_rate(calls: Calls) -> float:
    began = calls.due[0]
    return calls.rate(began + _BULK_SETTLE_SECONDS, began + _BULK_SECONDS)


def _bare_bulk(stage: Stage) -> float:
    texts = stage.bulk(4_096)
    runs = [stage.bare.ask(what="bulk", texts=texts, streams=s, width=w, seconds=3.0) for s, w in stage.shapes]
    return stage.measured("bare engine at batch 64, texts/s", max(run["rate"] for run in runs))


def _bare_p50(stage: Stage, texts: list[str], pause: float = 0.0) -> float:
    runs = [stage.bare.ask(what="single", texts=texts, width=width, pause=pause) for _, width in stage.shapes]
    name = f"bare engine, {1000 * pause:g} ms between calls, p50 ms" if pause else "bare engine, p50 ms"
    return stage.measured(name, min(run["p50_ms"] for run in runs))


def _echo_cpu_ms(stage: Stage, texts: list[str]) -> float:
    with Child("tests.load.echo", str(_REPLY_BYTES)) as server:
        address = server.opened["address"]
        plan = Plan(address=address, texts=texts, seconds=2.0, in_flight=stage.saturating, method=echo.PATH)
        before = server.ask()["cpu_seconds"]
        calls = stage.run("echo", plan)
        served: float = server.ask()["cpu_seconds"] - before
    return 1000 * (served + calls.cpu_seconds) / len(calls.due)
