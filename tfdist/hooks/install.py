"""The only assignments to TensorFlow: a table of seams, installed and undone together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.client import session as tf_session
from tensorflow.python.eager import backprop
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops import resource_variable_ops as tf_resources
from tensorflow.python.ops import variables as tf_variables
from tensorflow.python.training import monitored_session
from tensorflow.python.training import optimizer as tf_optimizer

from tfdist.core.settings import log
from tfdist.graph.job import BroadcastSwitch, Job
from tfdist.hooks.patches import Patches, with_subclasses
from tfdist.training import gradient_rewrite, session_step
from tfdist.training.fit import Fitting
from tfdist.training.function_step import Programs


def install(job: Job) -> Patches:
    """Hook into TensorFlow; the result undoes it.

    Raises:
      SeamError: this TensorFlow does not have the expected functions.
    """
    patches = Patches()
    programs = Programs(job)
    job.open_together, job.take_values = programs.open_together, programs.take
    try:
        _gradients(patches, job)
        _tapes(patches, job, programs)
        _functions(patches, programs)
        _optimizers(patches, job, programs)
        _keras(patches, Fitting(job, programs))
        _keras_models(patches, job)
        _initializers(patches, job)
        _sessions(patches, job)
    except BaseException:
        patches.undo()
        raise
    return patches


def _gradients(patches: Patches, job: Job) -> None:
    """``tf.gradients`` (v1 and v2) and ``compute_gradients``: tensorflow/python/ops/gradients_util.py."""
    outermost = gradient_rewrite.Outermost()

    def helper(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            gradients = original(ys, xs, *args, **kwargs)
            return gradient_rewrite.marked(xs if isinstance(xs, (list, tuple)) else [xs], gradients, job)

        return outermost.call(wrapper, lambda: original(ys, xs, *args, **kwargs))

    patches.replace(gradients_util, "_GradientsHelper", helper, ("ys", "xs", "grad_ys"))


def _tapes(patches: Patches, job: Job, programs: Programs) -> None:
    """``GradientTape.gradient``, and where a tape begins: tensorflow/python/eager/backprop.py."""

    def enter(original: Callable[..., Any], self: Any) -> Any:
        if tf.executing_eagerly():
            programs.tape_opened()
        return original(self)

    def leave(original: Callable[..., Any], self: Any, *args: Any) -> None:
        if tf.executing_eagerly():
            programs.tape_closed()
        original(self, *args)

    def gradient(original: Callable[..., Any], self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original(self, target, sources, *args, **kwargs)
        eagerly = tf.executing_eagerly()
        if job.alone_depth or eagerly and programs.others_record(self):
            return gradients
        flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        new = (
            programs.gradients(*flat, "gradients of an eager tape") if eagerly else gradient_rewrite.marked(*flat, job)
        )
        return tf.nest.pack_sequence_as(gradients, new)

    patches.replace(backprop.GradientTape, "__enter__", enter, ("self",))
    patches.replace(backprop.GradientTape, "__exit__", leave, ("self",))
    patches.replace(backprop.GradientTape, "gradient", gradient, ("self", "target", "sources"))


def _functions(patches: Patches, programs: Programs) -> None:
    """Calls of functions, and new variables: tensorflow/python/eager/polymorphic_function/concrete_function.py,
    tensorflow/python/ops/resource_variable_ops.py."""

    def call(original: Callable[..., Any], self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        return programs.call(self, tensor_inputs, lambda: original(self, tensor_inputs, captured_inputs))

    def assign(original: Callable[..., Any], self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        programs.assigned(value)
        return original(self, value, *args, **kwargs)

    def made(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        programs.created(self)

    # What is called in a function is built there, and not rewritten by AutoGraph.
    rules = autograph_config.CONVERSION_RULES
    patches.assign(autograph_config, "CONVERSION_RULES", rules, (autograph_config.DoNotConvert("tfdist"), *rules))
    patches.replace(
        concrete_function.ConcreteFunction, "_call_flat", call, ("self", "tensor_inputs", "captured_inputs")
    )
    patches.replace(tf_resources.ResourceVariable, "__init__", made, ("self",))
    patches.replace(polymorphic_function.UnliftedInitializerVariable, "__init__", made, ("self",))
    for name in ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update"):
        for cls in with_subclasses(tf_resources.BaseResourceVariable):
            if name in vars(cls):
                patches.replace(cls, name, assign)


def _optimizers(patches: Patches, job: Job, programs: Programs) -> None:
    """What applies gradients, in all optimizers and subclasses to come.

    TensorFlow's: tensorflow/python/training/optimizer.py; Keras's: keras/src/optimizers/base_optimizer.py; those of
    tf_keras: tf_keras/src/optimizers/optimizer.py, .../legacy/optimizer_v2.py.
    """
    outermost = gradient_rewrite.Outermost()

    def apply_gradients(original: Callable[..., Any], self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            return original(self, tuple(programs.averaged(tuple(pairs))), *args, **kwargs)

        return outermost.call(wrapper, lambda: original(self, pairs, *args, **kwargs))

    def apply(
        original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        def wrapper() -> Any:
            backend = sys.modules["keras.src.backend"]
            if backend.backend() != "tensorflow":
                raise RuntimeError(
                    f"Keras runs on the backend {backend.backend()!r}, whose gradients tfdist does not average: set "
                    "KERAS_BACKEND=tensorflow, or start one process"
                )
            known = getattr(self, "_trainable_variables", []) if trainable_variables is None else trainable_variables
            gradients, known = list(grads), list(known)
            if len(gradients) != len(known):  # Keras says so
                return original(self, gradients, trainable_variables, *args, **kwargs)
            if tf.executing_eagerly() and not self.built and not job.alone_depth:
                with backend.name_scope(self.name, caller=self):
                    self.build(known)  # now, so that what a checkpoint makes of its variables on rank 0 is shared
                self.built = True
                programs.share_new("the building of an optimizer")
            averages = [gradient for gradient, _ in programs.averaged(tuple(zip(gradients, known, strict=True)))]
            return original(self, averages, trainable_variables, *args, **kwargs)

        return outermost.call(wrapper, lambda: original(self, grads, trainable_variables, *args, **kwargs))

    first = ("self", "grads_and_vars")
    patches.replace_in_tree(tf_optimizer.Optimizer, "apply_gradients", apply_gradients, first)
    patches.when_imported(
        "keras.src.optimizers.base_optimizer",
        lambda m: patches.replace_in_tree(m.BaseOptimizer, "apply", apply, ("self", "grads", "trainable_variables")),
    )
    patches.when_imported(
        "tf_keras.src.optimizers.optimizer",
        lambda m: patches.replace_in_tree(m._BaseOptimizer, "apply_gradients", apply_gradients, first),
    )
    patches.when_imported(
        "tf_keras.src.optimizers.legacy.optimizer_v2",
        lambda m: patches.replace_in_tree(m.OptimizerV2, "apply_gradients", apply_gradients, first),
    )


def _keras_models(patches: Patches, job: Job) -> None:
    """How models of tf_keras train: tf_keras/src/engine/training.py; in a session: tf_keras/src/backend.py."""

    def make_train_function(original: Callable[..., Any], self: Any, force: bool = False) -> Any:
        if self.jit_compile:
            self.jit_compile = False  # drops what has been made already
            if job.world.rank == 0:
                log(
                    f"{self.name} was compiled with jit_compile=True, which is off now: XLA cannot compile the "
                    "exchange between the ranks"
                )
        return original(self, force)

    def initialize_variables(original: Callable[..., Any], session: Any) -> None:
        # What has no value yet, whenever a session is needed: on one rank that may be earlier, or more. So nothing
        # is exchanged here, but before the first step.
        with BroadcastSwitch(job, False):
            original(session)

    patches.when_imported(
        "tf_keras.src.backend",
        lambda m: patches.replace(m, "_initialize_variables", initialize_variables, ("session",)),
    )
    patches.when_imported(
        "tf_keras.src.engine.training",
        lambda m: patches.replace(m.Model, "make_train_function", make_train_function, ("self", "force")),
    )


def _keras(patches: Patches, fitting: Fitting) -> None:
    """``model.fit`` and what it uses: keras/src/backend/tensorflow/trainer.py."""

    def trainer(module: Any) -> None:
        owner = module.TensorFlowTrainer
        patches.replace(owner, "fit", fitting.fit, ("self", "x", "y"))
        patches.replace(owner, "evaluate", fitting.one_voice, ("self", "x", "y"))
        patches.replace(owner, "predict", fitting.one_voice, ("self", "x"))
        patches.replace(owner, "make_train_function", fitting.make_train_function, ("self",))
        patches.replace(module.TFEpochIterator, "__init__", fitting.epoch_iterator, ("self", "distribute_strategy"))

    patches.when_imported("keras.src.backend.tensorflow.trainer", trainer)


def _initializers(patches: Patches, job: Job) -> None:
    """``variables_initializer``, behind ``global_variables_initializer`` too: tensorflow/python/ops/session_step.py."""

    def initializer(original: Callable[..., Any], var_list: Any, name: str = "init") -> Any:
        result = original(var_list, name=name)
        return result if tf.executing_eagerly() else session_step.broadcast_behind(result, var_list, job)

    patches.replace_everywhere(tf_variables, "variables_initializer", initializer, ("var_list", "name"))


def _sessions(patches: Patches, job: Job) -> None:
    """Sessions, plain and monitored: tensorflow/python/client/session.py, …/training/monitored_session.py."""
    base = tf_session.BaseSession
    hook = session_step.SessionHook(base.run, job)

    def run(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return hook.around(self, fetches, lambda: original(self, fetches, *args, **kwargs))

    def hooked(session: Any, fetches: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *feeds, **options: hook.around(session, fetches, lambda: plain(*feeds, **options))

    def make_callable(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return hooked(self, fetches, original(self, fetches, *args, **kwargs))

    def make_from_options(original: Callable[..., Any], self: Any, callable_options: Any) -> Any:
        """What Keras trains with in a session's graph: tf_keras/src/backend.py, ``GraphExecutionFunction``."""
        fetches = [*callable_options.fetch, *callable_options.target]
        return hooked(self, fetches, original(self, callable_options))

    unhooked = base.run

    def create_session(original: Callable[..., Any], self: Any) -> Any:
        session = original(self)
        state = getattr(session.graph, "_tfdist_state", None)
        # Hooks read the global step right after this: a rank that has restored nothing would stop elsewhere.
        if state is not None and state.world_collectives:
            session_step.synchronise(session, unhooked, job)
        return session

    patches.replace(base, "run", run, ("self", "fetches", "feed_dict"))
    patches.replace(base, "make_callable", make_callable, ("self", "fetches", "feed_list"))
    patches.replace(base, "_make_callable_from_options", make_from_options, ("self", "callable_options"))
    for creator in (monitored_session.ChiefSessionCreator, monitored_session.WorkerSessionCreator):
        patches.replace(creator, "create_session", create_session, ("self",))
