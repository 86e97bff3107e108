"""How much is computed: every number of points and every time limit, in one place."""

from __future__ import annotations

from dataclasses import dataclass

PUBLISHED = ("bert-large", "gpt2-xl", "llama-7b")


@dataclass(frozen=True)
class Reduced:
    """A workload with fewer layers, for grids of many points.

    Attributes:
        workload: its name.
        layers: how many.
    """

    workload: str
    layers: int


@dataclass(frozen=True)
class Grid:
    """The points of all figures.

    Budgets are in percent of the ideal peak, link rates in GB/s.

    Attributes:
        name: what captions call it.
        workloads: for throughput over the budget and for the published bars.
        budgets: of throughput over the budget.
        shown: the budget of the figures that show one.
        pictured: the workload of the figures that show one plan.
        pictured_layers: its number of layers; its own if None.
        reduced: workloads of the maps over budgets and link rates.
        map_budgets: their budgets.
        map_links: their link rates.
        sensitive: the workload of the sensitivity.
        links: link rates of the sensitivity.
        batches: sequences per device.
        sequences: tokens per sequence.
        attained: fractions of the arithmetic peak.
        scaled: the workload whose layers are multiplied.
        depths: numbers of layers.
        scaled_budget: their budget.
        prices: budgets of the prices of memory.
        jitters: amounts of jitter of the plan shown, standard deviations in percent.
        trials: simulations per amount of jitter.
        seconds: limit of the ILP on each point of the figures about one budget axis.
        map_seconds: the same on each point of maps and sensitivity.
        gap: certified gap at which the ILP stops.
    """

    name: str
    workloads: tuple[str, ...]
    budgets: tuple[float, ...]
    shown: float
    pictured: str
    pictured_layers: int | None
    reduced: tuple[Reduced, ...]
    map_budgets: tuple[float, ...]
    map_links: tuple[float, ...]
    sensitive: Reduced
    links: tuple[float, ...]
    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    attained: tuple[float, ...]
    scaled: str
    depths: tuple[int, ...]
    scaled_budget: float
    prices: tuple[float, ...]
    jitters: tuple[float, ...]
    trials: int
    seconds: float
    map_seconds: float
    gap: float = 0.001


FULL = Grid(
    name="full",
    workloads=PUBLISHED,
    budgets=(100, 90, 80, 70, 60, 50, 40, 30, 20, 15),
    shown=50,
    pictured="gpt2-xl",
    pictured_layers=None,
    reduced=(Reduced("gpt2-xl", 24), Reduced("llama-7b", 16)),
    map_budgets=(90, 75, 60, 50, 40),
    map_links=(6, 12, 25, 50, 100, 200, 450),
    sensitive=Reduced("gpt2-xl", 24),
    links=(6, 12, 18, 25, 35, 50, 100, 200, 450),
    batches=(1, 2, 4, 8, 16, 32),
    sequences=(256, 512, 1024, 2048, 4096),
    attained=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    scaled="bert-large",
    depths=(2, 4, 8, 16, 24, 48, 96),
    scaled_budget=50,
    prices=(95, 85, 75, 65, 55, 45, 35, 25, 20, 15),
    jitters=(0, 1, 2, 5, 10, 20),
    trials=200,
    seconds=15,
    map_seconds=5,
)
"""What the paper shows."""

QUICK = Grid(
    name="quick",
    workloads=PUBLISHED,
    budgets=(100, 75, 50, 30),
    shown=50,
    pictured="gpt2-xl",
    pictured_layers=None,
    reduced=(Reduced("gpt2-xl", 16),),
    map_budgets=(75, 60, 45),
    map_links=(6, 25, 450),
    sensitive=Reduced("gpt2-xl", 16),
    links=(6, 25, 450),
    batches=(4, 16),
    sequences=(512, 2048),
    attained=(0.4, 0.8),
    scaled="bert-large",
    depths=(2, 8, 24),
    scaled_budget=50,
    prices=(85, 55, 30),
    jitters=(0, 5, 20),
    trials=50,
    seconds=4,
    map_seconds=2,
)
"""The same figures with fewer points, to look at within minutes."""
