"""Machines: device, link, host, their catalogue and the cost model."""

from slackswap_opt.machine.model import Device, Host, Link, LinkRates, Machine

__all__ = ["Device", "Host", "Link", "LinkRates", "Machine"]
