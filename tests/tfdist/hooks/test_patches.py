"""Hooks accept the original's arguments, by position or by name, and are undone completely."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tfdist.hooks.patches import HookError, Patches


class Base:
    def apply(self, pairs: Any, step: Any = None) -> Any:
        return "base", pairs, step


class Renamed(Base):
    def apply(self, gradients: Any, step: Any = None) -> Any:
        return "renamed", gradients, step


class HandsOn(Base):
    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply(*args, **kwargs)


def doubled(original: Callable[..., Any], self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
    return original(self, pairs * 2, *args, **kwargs)


@pytest.fixture
def patches() -> Any:
    made = Patches()
    made.replace_in_tree(Base, "apply", doubled, ("self", "pairs"))
    yield made
    made.undo()


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [(Base, "pairs", ("base", 6, 1)), (Renamed, "gradients", ("renamed", 6, 1)), (HandsOn, "pairs", ("base", 12, 1))],
)
def test_by_position_and_by_name(patches: Patches, owner: Any, name: str, expected: Any) -> None:
    assert owner().apply(3, 1) == expected
    assert owner().apply(3, step=1) == expected
    assert owner().apply(**{name: 3}, step=1) == expected
    assert owner().apply(**{"step": 1, name: 3}) == expected


def test_a_name_that_the_original_does_not_have_is_its_error(patches: Patches) -> None:
    with pytest.raises(TypeError):
        Renamed().apply(other=3)  # type: ignore[call-arg]


def test_subclasses_to_come_are_hooked_and_undone() -> None:
    patches = Patches()
    patches.replace_in_tree(Base, "apply", doubled, ("self", "pairs"))

    class Later(Base):
        def apply(self, pairs: Any, step: Any = None) -> Any:
            return "later", pairs, step

    assert Later().apply(pairs=2) == ("later", 4, None)
    patches.undo()
    assert Later().apply(pairs=2) == ("later", 2, None)


def test_what_another_package_has_wrapped_stays_and_does_nothing_of_ours() -> None:
    patches = Patches()
    patches.replace_in_tree(Base, "apply", doubled, ("self", "pairs"))
    ours, ours_of_renamed = Base.apply, Renamed.apply

    def theirs(self: Any, pairs: Any, step: Any = None) -> Any:
        return "theirs", ours(self, pairs, step)

    told = []

    def their_init_subclass(cls: type, **kwargs: Any) -> None:
        told.append(cls)
        our_init_subclass.__func__(cls, **kwargs)

    our_init_subclass = vars(Base)["__init_subclass__"]
    Base.apply = theirs  # type: ignore[method-assign]
    Base.__init_subclass__ = classmethod(their_init_subclass)  # type: ignore[assignment]
    try:
        assert Base().apply(3) == ("theirs", ("base", 6, None))
        patches.undo()
        assert Base().apply(3) == ("theirs", ("base", 3, None))
        assert Renamed.apply is not ours_of_renamed and Renamed().apply(3) == ("renamed", 3, None)

        class Later(Base):
            def apply(self, pairs: Any, step: Any = None) -> Any:
                return "later", pairs, step

        assert Later().apply(2) == ("later", 2, None) and told == [Later]
    finally:
        Base.apply = ours.__wrapped__  # type: ignore[attr-defined, method-assign]
        del Base.__init_subclass__


def test_an_inherited_method_is_inherited_again() -> None:
    class Below(Base):
        pass

    patches = Patches()
    patches.replace(Below, "apply", doubled)
    assert Below().apply(3) == ("base", 6, None)
    patches.undo()
    assert "apply" not in vars(Below)


def test_a_changed_signature_is_refused() -> None:
    with pytest.raises(HookError, match=r"Base.apply of TensorFlow .* takes \('self', 'pairs'\), not"):
        Patches().replace(Base, "apply", doubled, ("self", "gradients"))
    assert "pairs" in inspect.signature(Base.apply).parameters


def test_modules_that_have_imported_a_function_are_hooked_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also twice, while hooks are installed; and later, in the package of a module that is imported then."""

    def more(original: Callable[..., Any], value: int) -> int:
        return int(original(value)) + 1

    def made(name: str, **functions: Any) -> Any:
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    def first(value: int) -> int:
        return value

    def later(value: int) -> int:
        return value

    module, user = made("one_package.first", first=first), made("user", own_name=first)
    patches = Patches()
    for _ in range(2):
        patches.replace_everywhere(module, "first", more, ("value",))
    patches.installed()
    assert (module.first(0), user.own_name(0)) == (2, 2)
    imported, neighbour = made("one_package.later", later=later), made("one_package", later=later)
    patches.replace_everywhere(imported, "later", more, ("value",))
    assert (imported.later(0), neighbour.later(0)) == (1, 1)
    since = made("since", own_name=module.first)
    patches.undo()
    assert (module.first, user.own_name, imported.later, neighbour.later) == (first, first, later, later)
    assert since.own_name is first
