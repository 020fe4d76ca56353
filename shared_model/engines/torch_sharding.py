"""Tensor parallelism of the packed model families: each rank computes a share of every layer's heads and of its MLP.

A layer needs two sums over all ranks, one behind attention and one behind the MLP; the rest runs on every rank alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shared_model.engines.torch_model import Classifier, SentenceModel, layers_of


@dataclass(frozen=True)
class _Plan:
    """Linear layers of one encoder layer by name. `columns`: a rank has a share of their outputs, and so of the heads.
    `rows`: a rank has a share of their inputs, and all ranks sum up. `fused`: of `columns`, those that hold several
    matrices one below the other, and how many."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    fused: Mapping[str, int] = field(default_factory=dict)


_BERT = _Plan(
    columns=("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"),
    rows=("attention.output.dense", "output.dense"),
)
_PLANS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": _Plan(
        columns=("attention.q_lin", "attention.k_lin", "attention.v_lin", "ffn.lin1"),
        rows=("attention.out_lin", "ffn.lin2"),
    ),
    "modernbert": _Plan(
        columns=("attn.Wqkv", "mlp.Wi"), rows=("attn.Wo", "mlp.Wo"), fused={"attn.Wqkv": 3, "mlp.Wi": 2}
    ),
}


def shard(module: Classifier | SentenceModel, mesh: DeviceMesh) -> None:
    """Keep this rank's share of each layer, on its device. Every rank has loaded the same weights."""
    family, layers = layers_of(module)
    plan = _PLANS[family]
    styles = {
        **{name: ColwiseParallel() for name in plan.columns},
        **{name: RowwiseParallel() for name in plan.rows},
    }
    for layer in layers:
        for name, matrices in plan.fused.items():
            _regroup(layer.get_submodule(name), matrices, mesh.size())
        # Without a source rank each cuts its share from its own copy: nothing is sent.
        parallelize_module(layer, mesh, styles, src_data_rank=None)


def _regroup(linear: nn.Module, matrices: int, ranks: int) -> None:
    """Order the outputs so that a rank's share holds its part of each matrix, one below the other as before."""
    for parameter in linear.parameters():
        parts = parameter.data.unflatten(0, (matrices, ranks, -1))  # type: ignore[no-untyped-call]
        parameter.data = parts.transpose(0, 1).flatten(0, 2).contiguous()
