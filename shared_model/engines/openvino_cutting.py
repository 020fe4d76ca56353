"""Cuts an OpenVINO graph into parts of about equal measured cost, which run one after the other.

A part computes what the whole graph does only where a cut breaks no fusion of the compiler. None is behind a
FakeQuantize: the next matrix product would not be quantised, and answers differed by up to 0.12. A tensor that several
nodes read is in memory in any case, so cuts are made behind one: elsewhere, as within a layer norm, the rounding
differs. Between layers the fewest tensors cross a cut: the hidden states, and what layers share, as masks.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13

from shared_model.engines.stages import balanced

#: A text as costs are measured on, in tokens, and how often it runs.
_TOKENS, _RUNS = 32, 20

#: An output of a node: the node's place in the topological order, and the output's number.
_Port = tuple[int, int]


@dataclass(frozen=True)
class _Flow:
    """The nodes that a graph computes for each call, by place, without weights. Of each of their outputs, `last_use`:
    the last place that reads it; `readers`: how many nodes do."""

    nodes: Sequence[int]
    last_use: Mapping[_Port, int]
    readers: Mapping[_Port, int]

    def crossing(self, place: int) -> list[_Port]:
        """Outputs from up to this place that later nodes read."""
        return [port for port, last in self.last_use.items() if port[0] <= place < last]

    def price(self, place: int) -> int:
        """Of a cut behind this place: the tensors that cross it first, then whether one node alone reads its own."""
        crossing = self.crossing(place)
        return 2 * len(crossing) + all(self.readers[port] == 1 for port in crossing if port[0] == place)


def cut(model: ov.Model, stages: int, costs: Mapping[str, float]) -> list[ov.Model]:
    """`costs`: of nodes by their friendly names, see `measured`. A part's inputs and outputs are named alike in all
    parts; inputs of the model keep their names."""
    flow = _flow(model)
    places = [flow.nodes[0] - 1, *_places(model, flow, stages, costs), flow.nodes[-1]]
    return [_part(model, flow, *bounds) for bounds in itertools.pairwise(places)]


def measured(compiled: ov.CompiledModel) -> dict[str, float]:
    """Seconds by friendly name, of a model that was compiled to count them (PERF_COUNT)."""
    request = compiled.create_infer_request()
    ones = {port.any_name: np.ones((1, _TOKENS), np.int64) for port in compiled.inputs}
    costs: dict[str, float] = {}
    for _ in range(_RUNS):
        request.infer(ones)
        for info in request.get_profiling_info():
            # The quickest run: what else the machine does only adds to a node, and would move the cuts.
            seconds = info.real_time.total_seconds()
            costs[info.node_name] = min(seconds, costs.get(info.node_name, seconds))
    return costs


def _flow(model: ov.Model) -> _Flow:
    ops = model.get_ordered_ops()
    place = {op.get_friendly_name(): at for at, op in enumerate(ops)}
    inputs = {at for at, op in enumerate(ops) if op.get_type_name() == "Parameter"}
    nodes, last_use, readers = list[int](), dict[_Port, int](), Counter[_Port]()
    flowing = set(inputs)
    for at, op in enumerate(ops):
        sources = [(place[it.get_node().get_friendly_name()], it.get_index()) for it in op.input_values()]
        flowing_in = [port for port in sources if port[0] in flowing]
        if not flowing_in:
            continue
        flowing.add(at)
        nodes.append(at)
        # Inputs of the model are there for every part.
        computed = {port for port in flowing_in if port[0] not in inputs}
        last_use |= dict.fromkeys(computed, at)
        readers.update(computed)
    return _Flow(nodes, last_use, readers)


def _places(model: ov.Model, flow: _Flow, stages: int, costs: Mapping[str, float]) -> list[int]:
    """Behind which nodes to cut."""
    ops = model.get_ordered_ops()
    total = np.cumsum([costs.get(ops[at].get_friendly_name(), 0.0) for at in flow.nodes])
    quantised = {at for at in flow.nodes if ops[at].get_type_name() == "FakeQuantize"}
    right = [it for it, at in enumerate(flow.nodes) if not quantised & {port[0] for port in flow.crossing(at)}]
    shares = [total[it] / total[-1] for it in right]
    firsts = balanced(shares, stages, lambda it: flow.price(flow.nodes[right[it - 1]]))
    return [flow.nodes[right[first - 1]] for first in firsts]


def _part(model: ov.Model, flow: _Flow, before: int, last: int) -> ov.Model:
    """The nodes behind `before` up to `last`."""
    # Weights are shared with the clone.
    clone = model.clone()
    ops = clone.get_ordered_ops()
    read = {
        it.get_friendly_name()
        for op in ops[before + 1 : last + 1]
        for it in (value.get_node() for value in op.input_values())
    }
    parameters = [it for it in clone.get_parameters() if it.get_friendly_name() in read]
    for port in flow.crossing(before):
        output = ops[port[0]].output(port[1])
        parameter = opset13.parameter(output.get_partial_shape(), output.get_element_type(), name=_name(port))
        parameter.output(0).get_tensor().set_names({_name(port)})
        for target in output.get_target_inputs():
            target.replace_source_output(parameter.output(0))
        parameters.append(parameter)
    results = [it for it in clone.get_results()] if last == flow.nodes[-1] else []
    for port in flow.crossing(last):
        if port[0] > before:
            output = ops[port[0]].output(port[1])
            output.get_tensor().set_names({_name(port)})
            results.append(opset13.result(output))
    return ov.Model(results, parameters, "part")


def _name(port: _Port) -> str:
    return f"tensor_{port[0]}_{port[1]}"
