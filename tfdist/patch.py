"""The only assignments to TensorFlow: a table of seams, installed and undone together.

Each seam names a function of TensorFlow, the arguments it must have, and what stands around it. A seam whose
signature has changed fails at import with the versions and a remedy instead of training wrongly.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session
from tensorflow.python.eager import context
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops import variables as tf_variables
from tensorflow.python.training import monitored_session
from tensorflow.python.training import optimizer as tf_optimizer

from tfdist import rewrite, variables
from tfdist.job import Job

TESTED = "2.16 to 2.21"


class SeamError(ImportError):
    """TensorFlow has changed where tfdist hooks in."""


class Patches:
    """Assignments to other packages, and the way back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, wrapper: Callable[..., Any], first: tuple[str, ...] = ()) -> None:
        """Put ``wrapper(original, *args, **kwargs)`` in place of a function or method.

        Args:
          owner: module or class.
          name: its attribute.
          wrapper: called with the original first.
          first: the names that the original's first parameters must have.

        Raises:
          SeamError: they have others.
        """
        original = inspect.getattr_static(owner, name)
        found = tuple(inspect.signature(inspect.unwrap(original)).parameters)[: len(first)]
        if found != first:
            raise SeamError(
                f"{owner.__name__}.{name} of TensorFlow {tf.__version__} takes {found}, not {first}; "
                f"tfdist supports TensorFlow {TESTED}"
            )

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        self.assign(owner, name, original, patched)

    def replace_everywhere(self, module: Any, name: str, wrapper: Callable[..., Any], first: tuple[str, ...]) -> None:
        """Like ``replace``, in every module too that has imported the function under any name."""
        original = getattr(module, name)
        self.replace(module, name, wrapper, first)
        patched = getattr(module, name)
        for other in list(sys.modules.values()):
            for alias, value in list(getattr(other, "__dict__", {}).items()):
                if value is original and other is not module:
                    self.assign(other, alias, original, patched)

    def assign(self, owner: Any, name: str, original: Any, patched: Any) -> None:
        """Set one attribute, to be set back."""
        setattr(owner, name, patched)
        self._undo.append(lambda: setattr(owner, name, original))

    def undo(self) -> None:
        """Set everything back, last first."""
        while self._undo:
            self._undo.pop()()

    def on_undo(self, action: Callable[[], None]) -> None:
        """Something else to be done at the way back."""
        self._undo.append(action)


def install(job: Job) -> Patches:
    """Hook into TensorFlow; the result undoes it.

    Raises:
      SeamError: this TensorFlow does not have the expected functions.
    """
    patches = Patches()
    try:
        _gradients(patches, job)
        _optimizers(patches, job)
        _initializers(patches, job)
        _sessions(patches, job)
    except BaseException:
        patches.undo()
        raise
    return patches


def _gradients(patches: Patches, job: Job) -> None:
    """``tf.gradients`` (v1 and v2) and ``compute_gradients``: tensorflow/python/ops/gradients_util.py."""
    outermost = rewrite.Outermost()

    def helper(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            gradients = original(ys, xs, *args, **kwargs)
            return rewrite.marked(xs if isinstance(xs, (list, tuple)) else [xs], gradients, job)

        return outermost.call(wrapper, lambda: original(ys, xs, *args, **kwargs))

    patches.replace(gradients_util, "_GradientsHelper", helper, ("ys", "xs", "grad_ys"))


def _optimizers(patches: Patches, job: Job) -> None:
    """``apply_gradients`` of all v1 optimizers, also of subclasses to come: tensorflow/python/training/optimizer.py."""
    outermost = rewrite.Outermost()

    def apply(original: Callable[..., Any], self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            pairs = tuple(grads_and_vars)
            if not context.executing_eagerly():
                pairs = tuple(rewrite.averaged(pairs, job))
            return original(self, pairs, *args, **kwargs)

        return outermost.call(wrapper, lambda: original(self, grads_and_vars, *args, **kwargs))

    def patch_class(cls: type) -> None:
        if "apply_gradients" in vars(cls):
            patches.replace(cls, "apply_gradients", apply, ("self",))

    def init_subclass(cls: type, **kwargs: Any) -> None:
        super(tf_optimizer.Optimizer, cls).__init_subclass__(**kwargs)
        patch_class(cls)

    for cls in _with_subclasses(tf_optimizer.Optimizer):
        patch_class(cls)
    tf_optimizer.Optimizer.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    patches.on_undo(lambda: delattr(tf_optimizer.Optimizer, "__init_subclass__"))


def _with_subclasses(cls: Any) -> Iterator[Any]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)


def _initializers(patches: Patches, job: Job) -> None:
    """``variables_initializer``, behind ``global_variables_initializer`` too: tensorflow/python/ops/variables.py."""

    def initializer(original: Callable[..., Any], var_list: Any, name: str = "init") -> Any:
        result = original(var_list, name=name)
        return result if context.executing_eagerly() else variables.broadcast_behind(result, var_list, job)

    patches.replace_everywhere(tf_variables, "variables_initializer", initializer, ("var_list", "name"))


def _sessions(patches: Patches, job: Job) -> None:
    """Sessions, plain and monitored: tensorflow/python/client/session.py, …/training/monitored_session.py."""
    base = tf_session.BaseSession
    hook = variables.SessionHook(base.run, job)

    def run(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return hook.around(self, fetches, lambda: original(self, fetches, *args, **kwargs))

    def make_callable(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original(self, fetches, *args, **kwargs)

        def hooked(*feeds: Any, **options: Any) -> Any:
            return hook.around(self, fetches, lambda: plain(*feeds, **options))

        return hooked

    unhooked = base.run

    def create_session(original: Callable[..., Any], self: Any) -> Any:
        session = original(self)
        state = getattr(session.graph, "_tfdist_state", None)
        # Hooks read the global step right after this: a rank that has restored nothing would stop elsewhere.
        if state is not None and state.world_collectives:
            variables.synchronise(session, unhooked, job)
        return session

    patches.replace(base, "run", run, ("self", "fetches", "feed_dict"))
    patches.replace(base, "make_callable", make_callable, ("self", "fetches", "feed_list"))
    for creator in (monitored_session.ChiefSessionCreator, monitored_session.WorkerSessionCreator):
        patches.replace(creator, "create_session", create_session, ("self",))
