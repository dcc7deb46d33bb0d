"""Horovod's module names for programs that cannot be edited: ``tfdist-run --horovod`` puts this folder on PYTHONPATH.

``horovod.tensorflow`` and its modules are ``tfdist.horovod`` and its modules; so are ``horovod.keras`` and
``horovod.common``. The names are those of Horovod's version that ``__version__`` has.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.28.1"
_MODULES = {  # by beginnings of their names; the first that fits counts
    f"{__name__}.common.exceptions": "tfdist.horovod.elastic",
    f"{__name__}.common.util": "tfdist.horovod",
    f"{__name__}.common": "tfdist.horovod",
    f"{__name__}.tensorflow": "tfdist.horovod",
    f"{__name__}.keras": "tfdist.horovod.keras",
}


class _Names(MetaPathFinder, Loader):
    """Imports a module of tfdist under a name of Horovod."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if _module(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_module(spec.name))
        self._spec = module.__spec__  # which the import is about to replace
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _module(name: str) -> str:
    """Return the name of tfdist's module; empty for other modules."""
    for prefix, of_tfdist in _MODULES.items():
        if name == prefix or name.startswith(f"{prefix}."):
            return of_tfdist + name[len(prefix) :]
    return ""


sys.meta_path.insert(0, _Names())
