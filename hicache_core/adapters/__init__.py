"""Adapters for engines that do not call the façade themselves; none yet."""
