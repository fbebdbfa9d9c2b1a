"""Launch lines of serving engines, read as text and never executed: `read_launches`."""

from fleet.launch.read import Launch, read_launches

__all__ = ["Launch", "read_launches"]
