"""What a plan does with each saved activation: tensor kinds by layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from slackswap_opt.figures import style

MIB = 2**20
SMALL = MIB
"""Tensors below this are not worth a row."""
ACTIONS = ("keep", "swap", "recompute")


@dataclass(frozen=True)
class Decision:
    """What becomes of one saved activation.

    Attributes:
        planner: who decided.
        fits: whether its schedule fits the budget.
        layer: label of the producer's layer.
        kind: name of the tensor within its layer.
        tensor: its name.
        bytes: its size.
        action: "keep", "swap", "recompute" or "drop".
    """

    planner: str
    fits: bool
    layer: str
    kind: str
    tensor: str
    bytes: int
    action: str


def decisions(
    rows: Sequence[Decision],
    planners: Sequence[str] = ("greedy", "ilp"),
    axes: Sequence[Axes] | None = None,
) -> Figure:
    """A map per planner: a row per tensor kind, a column per layer.

    Only layers that are alike are shown: those whose kinds are in most layers.

    Args:
        rows: decisions of these planners.
        planners: which, from left to right.
        axes: one per planner; a figure of their own by default.
    """
    shown = [name for name in planners if any(row.planner == name for row in rows)]
    kinds, layers = _sides(rows)
    own = axes is None
    if axes is None:
        height = 0.9 + 0.125 * len(kinds)
        made = style.new_figure(style.TWO_COLUMNS, height)
        axes = list(made.subplots(1, len(shown), squeeze=False, sharey=True)[0])
    for ax, planner in zip(axes, shown, strict=True):
        _map(ax, [row for row in rows if row.planner == planner], kinds, layers)
        ax.set_title(_title(planner, [row for row in rows if row.planner == planner]))
    figure = style.figure_of(axes[0])
    handles = [
        Patch(facecolor=style.ACTION_LOOKS[name][0], hatch=style.ACTION_LOOKS[name][1],
              edgecolor=style.BLACK, linewidth=0.4, label=name)
        for name in ACTIONS
    ]  # fmt: skip
    if own:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    else:
        axes[-1].legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    return figure


def _title(planner: str, rows: Sequence[Decision]) -> str:
    sums = Counter[str]()
    for row in rows:
        sums[row.action] += row.bytes
    whole = max(1, sum(sums.values()))
    parts = ", ".join(f"{name} {100 * sums[name] / whole:.0f} %" for name in ACTIONS)
    return f"{planner}: {parts}"


def _sides(rows: Sequence[Decision]) -> tuple[list[tuple[str, int]], list[str]]:
    """Kinds that most layers have, with their sizes, and the layers that have them."""
    layers = Counter[str]()
    kinds: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for row in rows:
        if row.bytes >= SMALL:
            kinds.setdefault(row.kind, set()).add(row.layer)
            sizes[row.kind] = max(sizes.get(row.kind, 0), row.bytes)
    most = max((len(found) for found in kinds.values()), default=0)
    common = {kind: found for kind, found in kinds.items() if 2 * len(found) >= most}
    for found in common.values():
        layers.update(found)
    order = dict.fromkeys(row.layer for row in rows)
    return (
        [(kind, sizes[kind]) for kind in common],
        [layer for layer in order if 2 * layers[layer] > len(common)],
    )


def _map(
    ax: Axes,
    rows: Sequence[Decision],
    kinds: Sequence[tuple[str, int]],
    layers: Sequence[str],
) -> None:
    at = {(row.kind, row.layer): row.action for row in rows}
    for y, (kind, _) in enumerate(kinds):
        for action, spans in _runs([at.get((kind, layer)) for layer in layers]):
            colour, hatch = style.ACTION_LOOKS[action]
            ax.broken_barh(
                spans, (y - 0.42, 0.84), facecolor=colour, hatch=hatch, edgecolor="#333333",
                linewidth=0.3,
            )  # fmt: skip
    ax.set_yticks(range(len(kinds)), [f"{kind}  {size / MIB:.0f} MiB" for kind, size in kinds])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(kinds) - 0.4, -0.6)
    ax.set_xlim(0, len(layers))
    ax.set_xlabel(f"layer (1 to {len(layers)}, forward order)")
    ax.set_xticks(range(0, len(layers) + 1, _spacing(len(layers))))
    ax.spines[:].set_visible(False)


def _spacing(count: int) -> int:
    return next(step for step in (1, 2, 4, 8, 16, 32, 64) if count <= 8 * step or step == 64)


def _runs(actions: Sequence[str | None]) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Stretches of layers with one action, per action."""
    found: dict[str, list[tuple[float, float]]] = {}
    begin = 0
    for n in range(1, len(actions) + 1):
        if n == len(actions) or actions[n] != actions[begin]:
            action = actions[begin]
            if action is not None:
                found.setdefault(action, []).append((begin, n - begin))
            begin = n
    yield from found.items()
