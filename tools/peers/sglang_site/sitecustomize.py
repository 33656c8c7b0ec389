"""On the path of the SGLang peer only: answers for modules that SGLang imports and a machine without a GPU lacks.

Last in the queue of finders, so whatever is really installed wins. What is taken from such a module is a class that
has every attribute and, called with a function, returns it unchanged, as a decorator would. Nothing of the storage
path calls one of them.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import ClassVar

_NAMES = """
anthropic av blobfile compressed_tensors datasets decord deep_gemm flash_attn flashinfer gguf llguidance
mistral_common modelscope openai_harmony outlines sgl_kernel soundfile tilelang timm torch_memory_saver
torchaudio torchvision xgrammar
"""
ABSENT = frozenset(_NAMES.split())


class _Everything(type):
    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__call__()


class Absent(metaclass=_Everything):
    """What a module that is not there gives out."""

    def __getattr__(self, name: str) -> object:
        return Absent

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> object:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    __version__ = "99.0.0"
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class _Finder:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, _Finder(), is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(_Finder())
