"""Judges a storage class of another engine: the suite's levels through an adapter, and the class by itself.

The core's guard hides what a store lacks. So the cases here ask the class directly, with pages that carry no seal:
what they find is what the engine that uses the class is exposed to. Nothing here imports an engine before it is asked
to judge.
"""
