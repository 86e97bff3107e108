"""The roofline cost model: how long a kernel takes on a device.

A kernel is bound either by arithmetic or by memory traffic (S. Williams, A. Waterman and
D. Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52(4), 2009):

    duration = max(flops / (peak x attained_flops), bytes / (bandwidth x attained_bandwidth))
               + launch overhead

Matrix products run at the peak of their data type. Everything else (normalization, activation
functions, sums) runs on the ordinary cores, at the fp32 peak whatever the type it stores; such
kernels are bound by memory on every device in the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slackswap_opt.errors import InputError
from slackswap_opt.machine.model import Device

VECTOR_DTYPE = "fp32"
"""The peak that kernels without matrix products run at."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The work of one kernel.

    Attributes:
        flops: arithmetic operations (a multiply-add counts as two).
        moved_bytes: device memory read and written.
        dtype: data type whose peak applies.
        fixed_ns: time that no device changes, such as a collective on the network.
    """

    flops: float = 0.0
    moved_bytes: float = 0.0
    dtype: str = VECTOR_DTYPE
    fixed_ns: float = 0.0


def kernel_ns(device: Device, kernel: Kernel) -> float:
    """Duration of one kernel in nanoseconds, not rounded; 0 for a kernel without work (a view).

    Raises:
        InputError: if the device has no peak for the data type.
    """
    if kernel.flops == 0 and kernel.moved_bytes == 0:
        return kernel.fixed_ns
    peak = device.peak_flops_per_s.get(kernel.dtype)
    if peak is None:
        known = ", ".join(sorted(device.peak_flops_per_s))
        raise InputError(
            f"the device has no peak_flops_per_s for {kernel.dtype!r}; add it to the machine's "
            f"file or use one of: {known}"
        )
    compute_s = kernel.flops / (peak * device.attained_flops)
    memory_s = kernel.moved_bytes / (device.memory_bytes_per_s * device.attained_bandwidth)
    return max(compute_s, memory_s) * 1e9 + device.launch_ns + kernel.fixed_ns


def duration_ns(device: Device, kernels: Iterable[Kernel]) -> int:
    """Duration of an operation that runs these kernels one after another, rounded once."""
    return round(sum(kernel_ns(device, kernel) for kernel in kernels))
