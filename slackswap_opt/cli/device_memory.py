"""How the memory of a device was divided, in words and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackswap_opt.study import DeviceMemory


def line(memory: DeviceMemory) -> str:
    """One sentence: what is taken from what, and what is left."""
    from slackswap_opt.cli import show

    parts = ", ".join(
        f"{name} {show.memory(size)}" for name, size in memory.static.parts().items() if size
    )
    left = memory.budget_bytes
    rest = (
        f"a budget of {show.memory(left)}"
        if left > 0
        else f"nothing: {show.memory(-left)} are missing"
    )
    return (
        f"{show.memory(memory.device_bytes)} less {show.memory(memory.static.total_bytes)} static "
        f"({parts}; {memory.static.source}) and {show.memory(memory.reserve_bytes)} reserve "
        f"leave {rest}"
    )


def entry(memory: DeviceMemory) -> dict[str, Any]:
    """The same for a JSON document."""
    return {
        "device_memory_bytes": memory.device_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "static_bytes": memory.static.total_bytes,
        "static": {name.replace(" ", "_"): n for name, n in memory.static.parts().items()},
        "static_source": memory.static.source,
        "budget_bytes": memory.budget_bytes,
    }
