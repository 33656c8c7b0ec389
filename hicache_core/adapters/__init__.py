"""Doors into engines that do not call the façade themselves: SGLang, vLLM, LMCache."""
