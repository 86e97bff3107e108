"""Machines: the device, the link to the host, and the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackswap_opt.errors import InputError

BYTES_PER_US = 1_000_000
"""Bytes per second that make one byte per microsecond, the resolution of link rates."""
FULL_SPEED = 1_000_000
"""Speed of an undisturbed compute stream: work done per nanosecond, in the simulator's units."""


@dataclass(frozen=True, slots=True)
class Device:
    """What runs the compute stream.

    Attributes:
        memory_bytes: device memory.
        peak_flops_per_s: peak arithmetic rate by data type ("bf16", "fp16", "tf32", "fp32").
        memory_bytes_per_s: peak memory bandwidth.
        attained_flops: fraction of the arithmetic peak that large kernels reach.
        attained_bandwidth: fraction of the bandwidth that memory-bound kernels reach.
        launch_ns: fixed time per operation.
    """

    memory_bytes: int
    peak_flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    attained_flops: float
    attained_bandwidth: float
    launch_ns: int


@dataclass(frozen=True, slots=True)
class Link:
    """The connection between device and host, as seen by one device.

    Attributes:
        d2h_bytes_per_s: device to host, while nothing moves the other way.
        h2d_bytes_per_s: host to device, while nothing moves the other way.
        d2h_duplex_bytes_per_s: device to host, while both directions are busy.
        h2d_duplex_bytes_per_s: host to device, while both directions are busy.
        latency_ns: fixed time that every copy occupies its engine before its bytes move.
        shared_by: devices that share the link evenly; each gets rate / shared_by.
        overlap: part of its speed that the compute stream keeps while a copy is under way: 1 hides
            copies fully, 0 exposes them fully, as copies without prefetch or pinned memory are.
        contention: how much each copy under way stretches kernels beside it (0.05: by 5 %), for
            the memory bandwidth that it takes.
        min_swap_bytes: what moves fewer bytes is not worth a copy; planners keep it on the device.
    """

    d2h_bytes_per_s: float
    h2d_bytes_per_s: float
    d2h_duplex_bytes_per_s: float
    h2d_duplex_bytes_per_s: float
    latency_ns: int = 0
    shared_by: int = 1
    overlap: float = 1.0
    contention: float = 0.0
    min_swap_bytes: int = 0

    def __post_init__(self) -> None:
        faults = []
        for direction in ("d2h", "h2d"):
            alone = getattr(self, f"{direction}_bytes_per_s")
            duplex = getattr(self, f"{direction}_duplex_bytes_per_s")
            if duplex > alone:
                faults.append(
                    f"link: {direction}_duplex_bytes_per_s is {duplex:g}, above the "
                    f"{alone:g} of the direction alone; a busy link is never faster"
                )
            if not (alone > 0 and duplex > 0 and alone < float("inf")):
                faults.append(f"link: {direction} rates must be positive and finite")
        if self.latency_ns < 0:
            faults.append(f"link: latency_ns is {self.latency_ns}, expected 0 or more")
        if self.shared_by < 1:
            faults.append(f"link: shared_by is {self.shared_by}, expected 1 or more")
        if not 0 <= self.overlap <= 1:
            faults.append(f"link: overlap is {self.overlap:g}, expected 0 to 1")
        if not 0 <= self.contention < float("inf"):
            faults.append(f"link: contention is {self.contention:g}, expected 0 or more")
        if self.min_swap_bytes < 0:
            faults.append(f"link: min_swap_bytes is {self.min_swap_bytes}, expected 0 or more")
        if not faults and self.rates().slowest() < 1:
            faults.append("link: each rate must be at least 1 MB/s after sharing")
        if faults:
            raise InputError(*faults)

    def rates(self) -> LinkRates:
        """Integer rates after sharing, rounded once."""

        def per_us(bytes_per_s: float) -> int:
            return round(bytes_per_s / self.shared_by / BYTES_PER_US)

        return LinkRates(
            d2h=per_us(self.d2h_bytes_per_s),
            h2d=per_us(self.h2d_bytes_per_s),
            d2h_duplex=per_us(self.d2h_duplex_bytes_per_s),
            h2d_duplex=per_us(self.h2d_duplex_bytes_per_s),
        )

    def copy_ns(self, size_bytes: int, rate: int) -> int:
        """Time of a copy alone at a rate in bytes per microsecond, latency included, rounded up."""
        return self.latency_ns - (-size_bytes * 1000 // rate)

    def compute_speeds(self) -> tuple[int, int, int]:
        """Speed of the compute stream beside 0, 1 and 2 copies under way, in `FULL_SPEED`-ths.

        Beside n > 0 copies it is overlap / (1 + contention * n), rounded once.
        """

        def beside(copies: int) -> int:
            return round(FULL_SPEED * self.overlap / (1 + self.contention * copies))

        return FULL_SPEED, beside(1), beside(2)

    @classmethod
    def symmetric(cls, bytes_per_s: float, latency_ns: int = 0) -> Link:
        """A link with one rate in each direction that never slows down."""
        return cls(bytes_per_s, bytes_per_s, bytes_per_s, bytes_per_s, latency_ns)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Link rates in whole bytes per microsecond: what the simulator and the bound compute with."""

    d2h: int
    h2d: int
    d2h_duplex: int
    h2d_duplex: int

    def slowest(self) -> int:
        """The lowest of the four."""
        return min(self.d2h, self.h2d, self.d2h_duplex, self.h2d_duplex)


@dataclass(frozen=True, slots=True)
class Host:
    """Where swapped tensors go.

    Attributes:
        pinned_bytes: limit on pinned memory for swapped tensors; None for no limit.
        round_to_power_of_two: whether each host buffer takes the next power of two.
    """

    pinned_bytes: int | None = None
    round_to_power_of_two: bool = False

    def buffer_bytes(self, transfer_bytes: int) -> int:
        """Pinned bytes that a tensor of this many transferred bytes takes."""
        if not self.round_to_power_of_two or transfer_bytes <= 0:
            return transfer_bytes
        return 1 << (transfer_bytes - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, its link and its host.

    Attributes:
        name: the name in the catalogue, or the file it came from.
        sources: where each figure comes from, by field.
    """

    name: str
    device: Device
    link: Link
    host: Host = field(default_factory=Host)
    sources: Mapping[str, str] = field(default_factory=dict)
