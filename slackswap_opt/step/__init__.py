"""The training step: operations, tensors, their order and lifetimes."""

from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.indexed import IndexedStep
from slackswap_opt.step.layer_rules import LayerRule
from slackswap_opt.step.liveness import Liveness, ideal_step_ns, liveness, working_set_bytes
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

__all__ = [
    "IndexedStep",
    "LayerRule",
    "Liveness",
    "Operation",
    "Phase",
    "Tensor",
    "TrainingStep",
    "Value",
    "ideal_step_ns",
    "liveness",
    "working_set_bytes",
]
