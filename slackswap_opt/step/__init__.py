"""The training step: operations, tensors, their order and lifetimes."""

from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.indexed import IndexedStep
from slackswap_opt.step.layer_rules import LayerRule
from slackswap_opt.step.liveness import Liveness, ideal_step_ns, liveness, working_set_bytes
from slackswap_opt.step.model import Operation, Phase, Tensor, Value
from slackswap_opt.step.parts import Parts, in_parts
from slackswap_opt.step.repeats import Repeat, find_repeats, layers_of

__all__ = [
    "IndexedStep",
    "LayerRule",
    "Liveness",
    "Operation",
    "Parts",
    "Phase",
    "Repeat",
    "Tensor",
    "TrainingStep",
    "Value",
    "find_repeats",
    "ideal_step_ns",
    "in_parts",
    "layers_of",
    "liveness",
    "working_set_bytes",
]
