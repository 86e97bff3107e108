"""The roofline: arithmetic or memory, whichever takes longer, and a launch."""

from __future__ import annotations

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.machine import Device, Kernel, duration_ns, kernel_ns

DEVICE = Device(
    memory_bytes=1 << 30,
    peak_flops_per_s={"fp32": 1e12, "bf16": 1e13},
    memory_bytes_per_s=1e11,
    attained_flops=0.5,
    attained_bandwidth=0.8,
    launch_ns=1000,
)


def test_arithmetic_bound():
    assert duration_ns(DEVICE, [Kernel(5e6, 8, "bf16")]) == 1000 + 1000


def test_memory_bound():
    assert duration_ns(DEVICE, [Kernel(1, 80_000, "bf16")]) == 1000 + 1000


def test_the_data_type_sets_the_peak():
    assert kernel_ns(DEVICE, Kernel(5e6, 0, "fp32")) == pytest.approx(11_000)


def test_kernels_without_a_product_use_the_ordinary_cores():
    assert Kernel(1.0, 1.0).dtype == "fp32"


def test_no_work_takes_no_time():
    assert duration_ns(DEVICE, []) == 0
    assert duration_ns(DEVICE, [Kernel()]) == 0


def test_fixed_time_is_not_scaled_and_not_launched():
    assert duration_ns(DEVICE, [Kernel(fixed_ns=12.0)]) == 12


def test_an_operation_is_rounded_once():
    third = Kernel(fixed_ns=1 / 3)
    assert duration_ns(DEVICE, [third] * 3) == 1


def test_an_unknown_data_type_names_the_known_ones():
    with pytest.raises(InputError, match=r"no peak_flops_per_s for 'fp8'.*bf16, fp32"):
        kernel_ns(DEVICE, Kernel(1, 1, "fp8"))
