"""Typed settings, where each came from, what was corrected, and why."""
