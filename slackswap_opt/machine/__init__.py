"""Machines: device, link, host, their catalogue and the cost model."""

from slackswap_opt.machine.catalogue import DEFAULT_MACHINE, load_machine, machine_names
from slackswap_opt.machine.cost import Kernel, duration_ns, kernel_ns
from slackswap_opt.machine.model import Device, Host, Link, LinkRates, Machine

__all__ = [
    "DEFAULT_MACHINE",
    "Device",
    "Host",
    "Kernel",
    "Link",
    "LinkRates",
    "Machine",
    "duration_ns",
    "kernel_ns",
    "load_machine",
    "machine_names",
]
