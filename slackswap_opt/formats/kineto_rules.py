"""What backward operations of PyTorch read, by the name of their autograd function.

A profile shows shapes, not identities, so which forward tensors an autograd function saves is taken
from what PyTorch's functions of that name save (tools/autograd/derivatives.yaml describes them);
docs/formats-traces.md lists the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class SavedRule:
    """What an autograd function reads.

    Attributes:
        inputs: its float inputs.
        outputs: its outputs.
        factors: each input of which another input is trained, as products do.
        extras: tensors that the forward operation makes for it, such as masks and statistics.
        known: False for the rule of a function that no rule names.
    """

    inputs: bool = False
    outputs: bool = False
    factors: bool = False
    extras: bool = False
    known: bool = True


UNKNOWN = SavedRule(inputs=True, outputs=True, known=False)

_RULES = {
    r"\w*convolution\w*|conv\w*|slowconv\w*|thnnconv\w*|linear|embedding\w*|prelu|gridsampler\w*"
    r"|index|indexselect|gather|take": SavedRule(inputs=True),
    r"mul|mm|bmm|addmm|baddbmm|addbmm|addmv|mv|dot|div|addcmul|addcdiv|lerp|einsum|matmul": (
        SavedRule(factors=True)
    ),
    r"\w*batchnorm|\w*layernorm|\w*groupnorm|\w*instancenorm|\w*rmsnorm": SavedRule(
        inputs=True, extras=True
    ),
    r"gelu\w*|silu\w*|mish|softplus|hardswish\w*|hardsigmoid\w*|leakyrelu\w*|hardtanh\w*|clamp\w*"
    r"|abs|pow\w*|log|log1p|sin|cos|erf|logsigmoid\w*|softshrink|glu\w*|celu|selu": SavedRule(
        inputs=True
    ),
    r"relu|relu6|threshold\w*|sigmoid|tanh|softmax\w*|logsoftmax\w*|exp|sqrt|rsqrt|reciprocal"
    r"|elu": SavedRule(outputs=True),
    r"maxpool\w*|adaptivemaxpool\w*|max\w*|min\w*|amax|amin|topk|sort|cummax": SavedRule(
        inputs=True, extras=True
    ),
    r"norm|linalgvectornorm|logsumexp|prod|cumprod": SavedRule(inputs=True, outputs=True),
    r"var\w*|std\w*|\w*crossentropy\w*|mseloss|l1loss|smoothl1loss|huberloss|kldiv|nllloss\w*": (
        SavedRule(inputs=True)
    ),
    r"scaleddotproduct\w*attention\w*|\w*flashattn\w*|\w*efficientattention\w*": SavedRule(
        inputs=True, outputs=True, extras=True
    ),
    r"\w*dropout\w*|bernoulli\w*|where\w*|maskedfill|maskedscatter": SavedRule(extras=True),
    r"add|sub|rsub|neg|cat|stack|sum|mean|view|unsafeview|reshapealias|reshape|permute|transpose|t"
    r"|expand|clone|copy|tocopy|to|slice|select|split\w*|unsplit|unbind|chunk|narrow|squeeze"
    r"|unsqueeze|alias|detach|asstrided|repeat|constantpadnd|\w*pad\w*|avgpool\w*"
    r"|adaptiveavgpool\w*|upsample\w*|flip|roll|contiguous|diagonal|triu|tril|cumsum|copyslices"
    r"|flatten|unflatten|zero|fill|swapaxes|movedim|pixelshuffle|unfold"
    r"|accumulategrad|splitwithsizes": SavedRule(),
}
_COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in _RULES.items())

_remembered = lru_cache(maxsize=4096)
"""For what depends on a name alone: traces repeat a few names very often."""
_ENGINE = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"(?:\w+::)*(?P<name>\w+?)_?Backward(?:[A-Z]\w*)?[0-9]*")
_DEVICE_PREFIX = re.compile(r"^(?:cudnn|miopen|native|mkldnn|fused)")
_VIEW = re.compile(
    r"aten::(?:view|view_as|_?reshape\w*|_unsafe_view|flatten|unflatten|permute|transpose|t|numpy_T"
    r"|unsqueeze|squeeze|expand|expand_as|slice|select|narrow|split|split_with_sizes|chunk|unbind"
    r"|unsafe_split\w*|unsafe_chunk|as_strided|detach|alias|contiguous|to|diagonal|movedim|swapaxes)"
)
_COLLECTIVE = re.compile(
    r"c10d|nccl|all_?2_?all|all_?to_?all|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE
)
_RANDOM = re.compile(r"dropout|bernoulli|rand|normal_|uniform_|multinomial", re.IGNORECASE)


@_remembered
def function_name(call: str) -> str | None:
    """The autograd function that a call runs, such as `CudnnConvolution`; None for other calls."""
    if call.endswith("AccumulateGrad"):
        return None
    match = _BACKWARD.fullmatch(call.removeprefix(_ENGINE))
    return match["name"] if match else None


def of_engine(call: str) -> bool:
    """Whether a call is the autograd engine's around a function."""
    return call.startswith(_ENGINE)


@_remembered
def saved_rule(function: str) -> SavedRule:
    """The rule for an autograd function; a cautious one for functions unknown."""
    word = function.lower().replace("_", "")
    for text in (word, _DEVICE_PREFIX.sub("", word)):
        for pattern, rule in _COMPILED:
            if pattern.fullmatch(text):
                return rule
    return UNKNOWN


@_remembered
def is_view(call: str) -> bool:
    """Whether a call without kernels gives another name to its input."""
    return _VIEW.fullmatch(call) is not None


@_remembered
def is_collective(call: str) -> bool:
    """Whether a call communicates with other devices."""
    return _COLLECTIVE.search(call) is not None


@_remembered
def is_random(call: str) -> bool:
    """Whether a call draws random numbers."""
    return _RANDOM.search(call) is not None
