"""Patches: all assignments to attributes of other packages, and their removal.

A hook names a function of another package, the parameters it must have, and a wrapper. If the signature has changed,
the import fails with the versions and a remedy. Otherwise training would be wrong.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import wrapt
from tensorflow.python.autograph.impl import api

from tfdist.compat.objects import with_subclasses

TESTED = "2.16 to 2.22"


class HookError(ImportError):
    """A function that tfdist hooks has changed in TensorFlow."""


class Patches:
    """Assignments to attributes of other packages, which can be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._active = True
        self._everywhere: list[Any] = []  # patched functions that all modules get
        self._installed = False

    def replace(
        self,
        owner: Any,
        name: str,
        wrapper: Callable[..., Any],
        first: tuple[str, ...] = (),
        by_name: tuple[str, ...] = (),
    ) -> None:
        """Put ``wrapper(original, *args, **kwargs)`` in place of a function or method.

        Args:
          owner: module or class.
          name: name of the owner's attribute.
          wrapper: function that is called with the original as its first argument.
          first: names that the original's first parameters must have.
          by_name: names that callers may use for the first parameters if the original takes them as ``*args``.

        Raises:
          HookError: the original's first parameters have other names.
        """
        original = inspect.getattr_static(owner, name)
        found = tuple(inspect.signature(inspect.unwrap(original)).parameters)[: len(first)]
        if found != first:
            raise HookError(
                f"{owner.__name__}.{name} of TensorFlow {tf.__version__} takes {found}, not {first}; "
                f"tfdist supports TensorFlow {TESTED}"
            )

        names = _positions(original, wrapper, first or by_name)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if not self._active:  # another package has wrapped it, and still calls it
                return original(*args, **kwargs)
            # The caller may pass the wrapper's positional arguments by the names of the original's parameters.
            for parameter in names[len(args) :]:
                if parameter not in kwargs:
                    break
                args += (kwargs.pop(parameter),)
            return wrapper(original, *args, **kwargs)

        api.autograph_artifact(patched)  # not to be rewritten by AutoGraph in functions that call it
        self.assign(owner, name, patched)

    def replace_everywhere(self, module: Any, name: str, wrapper: Callable[..., Any], first: tuple[str, ...]) -> None:
        """Like ``replace``, and also in every module that has imported the function under any name.

        While hooks are installed, ``installed`` does this for all functions together: there are thousands of modules.
        """
        self.replace(module, name, wrapper, first)
        self._everywhere.append(getattr(module, name))
        if self._installed:  # the module was imported just now: only its own package can have the function
            self._replace_elsewhere(module.__name__.partition(".")[0])

    def installed(self) -> None:
        """End the installation: replace functions in modules that have imported them."""
        self._replace_elsewhere()
        self._installed = True

    def _replace_elsewhere(self, package: str = "") -> None:
        _swap({id(patched.__wrapped__): patched for patched in self._everywhere}, package)

    def replace_in_tree(self, base: Any, name: str, wrapper: Callable[..., Any], first: tuple[str, ...]) -> None:
        """Like ``replace``, in a class and all subclasses with a method of their own, also in those defined later."""

        def patch_class(cls: type) -> None:
            if name in vars(cls):
                self.replace(cls, name, wrapper, first if cls is base else (), first)

        own = vars(base).get("__init_subclass__")

        def init_subclass(cls: type, **kwargs: Any) -> None:
            if own is None:
                super(base, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
            else:
                own.__func__(cls, **kwargs)
            if self._active:
                patch_class(cls)

        for cls in with_subclasses(base):
            patch_class(cls)
        self.assign(base, "__init_subclass__", classmethod(init_subclass))

    def when_imported(self, where: str, patch: Callable[..., None], *args: Any) -> None:
        """Call ``patch(owner, *args)`` when a module is imported, perhaps later or never.

        Args:
          where: the owner: ``"module"``, or ``"module:Class"`` for a class in it.
          patch: function that patches the owner, such as ``replace``.
          args: its other arguments.
        """
        module, _, name = where.partition(":")

        def hook(imported: Any) -> None:
            if self._active:
                patch(getattr(imported, name) if name else imported, *args)

        wrapt.register_post_import_hook(hook, module)

    def assign(self, owner: Any, name: str, patched: Any) -> None:
        """Set one attribute. ``undo`` sets it back, unless another package has set it since."""
        inherited, original = name not in vars(owner), vars(owner).get(name)
        setattr(owner, name, patched)

        def set_back() -> None:
            if inspect.getattr_static(owner, name, None) is not patched:
                return
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo.append(set_back)

    @property
    def active(self) -> bool:
        """Whether the patches have not been undone."""
        return self._active

    def undo(self) -> None:
        """Set everything back, last first. Patched functions that others have wrapped then call the original.

        Modules that have imported a patched function since get the original, too, where other patches find it.
        """
        self._active = False
        while self._undo:
            self._undo.pop()()
        _swap({id(patched): patched.__wrapped__ for patched in self._everywhere})

    def on_undo(self, action: Callable[[], None]) -> None:
        """Add an action that ``undo`` runs."""
        self._undo.append(action)


def _swap(values: Mapping[int, Any], package: str = "") -> None:
    """Put other values in place of some, which are given by ``id``, in the modules of a package or of all."""
    for module in [m for n, m in list(sys.modules.items()) if not package or n.partition(".")[0] == package]:
        for alias, value in list(getattr(module, "__dict__", {}).items()):
            new = value
            while id(new) in values:  # of several hooks of one function, the last one
                new = values[id(new)]
            if new is not value:
                setattr(module, alias, new)


def _positions(original: Any, wrapper: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a function's names for the parameters that its wrapper takes by position after the original."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in inspect.signature(wrapper).parameters.values() if p.kind in positional][1:]
    parameters = list(inspect.signature(inspect.unwrap(original)).parameters.values())
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters[: len(taken)]):
        return names[: len(taken)]
    return tuple(p.name for p in parameters[: len(taken)])


def before(tell: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a wrapper that calls ``tell`` with the first argument of a call, before the call."""

    def wrapper(original: Callable[..., Any], subject: Any, *args: Any, **kwargs: Any) -> Any:
        tell(subject)
        return original(subject, *args, **kwargs)

    return wrapper


def after(tell: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a wrapper that calls ``tell`` with the first argument of a call, after the call."""

    def wrapper(original: Callable[..., Any], subject: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(subject, *args, **kwargs)
        tell(subject)
        return result

    return wrapper


class Outermost(threading.local):
    """Makes wrappers that act only at the outermost of nested calls (``super()``, recursion), for each thread.

    Inside a call of one of them, all of them only call their originals.
    """

    active = False

    def only(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper that acts as ``wrapper`` at the outermost call."""

        @functools.wraps(wrapper)
        def outer(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self.active:
                return original(*args, **kwargs)
            self.active = True
            try:
                return wrapper(original, *args, **kwargs)
            finally:
                self.active = False

        return outer
