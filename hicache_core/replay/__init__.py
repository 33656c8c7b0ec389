"""Replay of request traces through the façade: what an engine does, without the engine."""
