"""What is known about a layer from its type: what its backward operation reads, and more.

The rules follow what the frameworks save, simplified to whole inputs and outputs; docs/formats.md
lists them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How a type of layer behaves.

    Attributes:
        saves_input: its backward operation reads its inputs.
        saves_output: its backward operation reads its output.
        known: False for the rule of a type that no rule names.
        view: at no cost it is another name of its input.
        passes_gradient: at no cost, the gradient of its output is that of each input.
        differentiable: gradients flow through it.
        starts_layer: with parameters, it begins a layer in a plain chain.
        ratio: time of its backward operation by that of the forward one, where it is derived;
            None for the usual one.
    """

    saves_input: bool = False
    saves_output: bool = False
    known: bool = True
    view: bool = False
    passes_gradient: bool = False
    differentiable: bool = True
    starts_layer: bool = False
    ratio: float | None = None


_UNKNOWN = LayerRule(saves_input=True, saves_output=True, known=False, starts_layer=True)

_RULES = {
    r"conv(transpose)?\dd|linear|embedding(bag)?|(lstm|gru|rnn)(cell)?": LayerRule(
        saves_input=True, starts_layer=True
    ),
    r"(sync)?batchnorm(\dd)?|layernorm|groupnorm|instancenorm(\dd)?|rmsnorm": LayerRule(
        saves_input=True
    ),
    r"gelu|silu|swish|mul|matmul|bmm": LayerRule(saves_input=True),
    r"relu6?|sigmoid|tanh|(log_?)?softmax|dropout(\dd)?": LayerRule(saves_output=True),
    r"(adaptive)?maxpool\dd": LayerRule(saves_input=True, saves_output=True),
    r"(adaptive)?avgpool\dd|concat|cat|stack|mean|sum|sub": LayerRule(),
    r"add": LayerRule(passes_gradient=True),
    r"size|shape": LayerRule(differentiable=False),
    r"__getitem__|view|reshape|flatten|unflatten|squeeze|unsqueeze|transpose|permute|t"
    r"|contiguous|identity|expand|narrow|select|slice|chunk|split": LayerRule(view=True),
}
_COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in _RULES.items())


def rule_for(kind: str) -> LayerRule:
    """The rule for a type of layer such as `Conv2d`; a cautious one for types unknown."""
    word = kind.lower()
    return next((rule for pattern, rule in _COMPILED if pattern.fullmatch(word)), _UNKNOWN)
