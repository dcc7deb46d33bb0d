"""Every hook passes its arguments on as the original would get them: by position, by name, in any order."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.named import subtest
from tfdist.core.settings import Settings
from tfdist.engine.collective import StopRequest
from tfdist.gradients import marks, writes
from tfdist.graph.job import Switches
from tfdist.hooks import gradients, install
from tfdist.hooks.patches import Patches
from tfdist.training.fit import FitSteps
from tfdist.training.moments import Moments
from tfdist.transport.one_process import OneProcess
from tfdist.transport.saves import PendingSave

Parameter = inspect.Parameter
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


# Only one of the two modules exists; before Keras 3.16 it is the first.
MOVED = {"keras.src.backend.tensorflow.nn", "keras.src.backend.tensorflow.ops.nn"}


class Recorded(Patches):
    """Patches that are recorded and not made."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: dict[str, tuple[Any, ...]] = {}

    def replace(self, owner: Any, name: str, wrapper: Any, first: Any = (), by_name: Any = ()) -> None:
        original = inspect.getattr_static(owner, name)
        key = f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}"
        self.replaced[key] = inspect.signature(inspect.unwrap(original)), name, wrapper, first, by_name

    def when_imported(self, where: str, patch: Callable[..., None], *args: Any) -> None:
        module, _, name = where.partition(":")
        if importlib.util.find_spec(module.split(".")[0]) is None:
            return
        with contextlib.suppress(ModuleNotFoundError) if module in MOVED else contextlib.nullcontext():
            imported = importlib.import_module(module)
            patch(getattr(imported, name) if name else imported, *args)

    def assign(self, owner: Any, name: str, patched: Any) -> None:
        pass


class Functions:
    """Functions that do nothing but call the original."""

    def call(self, function: Any, inputs: Any, call: Callable[[], Any]) -> Any:
        return call()

    def applied(self, optimizer: Any, pairs: Any) -> list[Any]:
        return list(pairs)

    def of_tape(self, tape: Any, target: Any, sources: Any, derivatives: Any, each: bool) -> list[Any]:
        return list(derivatives)

    def setting(self) -> Any:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class Argument(list[Any]):
    """An argument with all attributes that wrappers read."""

    fetch = target = variables = states = ()
    built, jit_compile, synchronized, name = True, False, False, "an argument"
    _pad_step_number, _tfdist_follows, _tfdist_save = False, False, PendingSave(writes=True)
    _tfdist_sources: tuple[Any, ...] = ()
    _master = "a server"

    def _tf_sess(self) -> None:
        return None

    def keys(self) -> tuple[Any, ...]:
        return ()


class Parts:
    """An object with these attributes."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


@pytest.fixture(scope="module")
def replaced() -> Iterator[dict[str, tuple[Any, ...]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks, "marked", lambda xs, gradients, job, of, each=False: gradients)
        patch.setattr(writes, "may_write", lambda op_type: False)
        patch.setattr(gradients, "variable_key", lambda variable: None)
        patch.setattr(FitSteps, "_around", lambda self, callbacks, model: callbacks)
        patch.setattr("tfdist.training.fit._package", lambda model: "keras")
        job: Any = types.SimpleNamespace(
            switches=Switches(Settings()),
            world=OneProcess(),
            stop=StopRequest(),
            ends_epoch=StopRequest(),
            failing_plainly=lambda call: call(),
        )
        functions: Any = Functions()
        functions.adapted = Parts(adapted=lambda layer: None)
        sessions = types.SimpleNamespace(
            around=lambda session, fetches, call: call(),
            created=lambda session: None,
            callable_made=lambda session: None,
            run_in_parts=lambda session, fetches: None,
            closes=lambda session: None,
            trained=None,
            that_trained=list,
        )
        fit = FitSteps(job, functions, functions, Moments())
        steps: Any = Parts(
            job=job,
            functions=functions,
            eager=functions,
            variables=functions,
            sessions=sessions,
            fit=fit,
            moments=Moments(),
            replicas=functions,
            program=None,
        )
        recorded = Recorded()
        for point in install._TABLE[:-1]:  # the last one patches Python: uncaught exceptions, and exit codes
            point.hook(recorded, job, steps)
        yield recorded.replaced


def arguments_of(signature: inspect.Signature, by_name: tuple[str, ...]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield arguments: some by position, the others by name in two orders, with and without optional ones."""
    parameters = list(signature.parameters.values())
    named = [p.name for p in parameters if p.kind in NAMED]
    positional = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    required = [p.name for p in parameters if p.kind in NAMED and p.default is Parameter.empty]
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        more = [name for name in by_name if name not in named]
        positional, named, required = positional + more, named + more, required + more
    value: dict[str, Any] = {name: Argument([(name, "of a pair")]) for name in named}
    value |= {"_trainable_variables": Argument([("a", "variable")]), "save_path": "a path", "file_prefix": "a path"}
    value |= {"global_step": 3, "checkpoint_number": 3}
    optional = [name for name in named if name not in required]
    for left_out in [
        set[str](),
        set(optional),
        *({name} for name in optional),
        *(set(optional) - {n} for n in optional),
    ]:
        given = [name for name in named if name not in left_out]
        for count in range(1, len(positional) + 1):
            if positional[:count] == given[:count]:
                by_position, rest = given[:count], given[count:]
                for order in (rest, rest[::-1]):
                    yield [value[name] for name in by_position], {name: value[name] for name in order}


def plain(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return arguments by name, with sequences as lists, because a wrapper may make a list of a sequence."""
    bound.apply_defaults()
    given = {n: inspect.unwrap(v) for n, v in bound.arguments.items()}  # a wrapper may also wrap an argument
    return {n: list(v) if isinstance(v, list | tuple) else v for n, v in given.items()}


def test_every_hook_hands_on_what_it_was_given(replaced: dict[str, tuple[Any, ...]]) -> None:
    assert len(replaced) > 40 and any("keras" in name for name in replaced), replaced.keys()
    calls = 0
    for key, (signature, name, wrapper, first, by_name) in replaced.items():
        received: list[inspect.BoundArguments] = []
        variadic = any(p.kind is Parameter.VAR_POSITIONAL for p in signature.parameters.values())

        def original(
            *args: Any,
            _signature: inspect.Signature = signature,
            _received: list[inspect.BoundArguments] = received,
            **kwargs: Any,
        ) -> list[str]:
            _received.append(_signature.bind(*args, **kwargs))
            return ["a result"]

        original.__signature__ = signature  # type: ignore[attr-defined]
        owner = type(key, (), {name: original})
        Patches().replace(owner, name, wrapper, first, by_name)
        for args, kwargs in arguments_of(signature, by_name):
            with subtest(key, len(args), list(kwargs)):
                expected = plain(signature.bind(*args, **kwargs))
                if variadic:  # a wrapper may pass arguments by position that were given by name
                    expected, kept = {}, (*args, *kwargs.values())
                received.clear()
                getattr(owner, name)(*args, **kwargs)
                assert len(received) == 1
                if expected:
                    assert plain(received[0]) == expected
                else:
                    found = [*received[0].args, *received[0].kwargs.values()]
                    assert [list(v) for v in found] == [list(v) for v in kept]
                calls += 1
    assert calls > 1000
