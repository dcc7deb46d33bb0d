"""Block end: new values of a state's variables from the mean over the ranks of what they have changed, in NumPy.

A fragment's block ends after its last step, and all of them where they are cut off. ``bmuf`` has the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.graph.job import Job
from tfdist.replicas.eager_variables import mean_of_ranks
from tfdist.replicas.program import Program
from tfdist.updates._local_sgd_state import LocalSGDState


def position_of(program: Program, state: LocalSGDState) -> int:
    """Return a state's position in its block."""
    return int(next(program.read([state.position])))


class BlockEnd:
    """Values of variables at a block's end.

    Args:
      program: the session of the variables, or this process.
      state: state of the blocks.
      numbers: positions, in the state, of the trained variables whose block ends.
      whole: variables whose values are averaged with them.
    """

    def __init__(self, program: Program, state: LocalSGDState, numbers: Sequence[int], whole: Sequence[Any]) -> None:
        self._program, self._state = program, state
        self._numbers, self._whole = numbers, whole
        kinds = (state.variables, state.starts, *([state.changes] if state.changes else []))
        own = [kind[n] for kind in kinds for n in numbers]
        used = [*own, *whole, *(slot.variable for slot in state.slots), state.position]
        self._variables = list({id(v): v for v in used}.values())
        self._before = dict(zip(map(id, self._variables), program.read(self._variables), strict=True))
        self._new: dict[int, np.ndarray] = {}

    def value(self, variable: Any) -> np.ndarray:
        """Return a variable's value, the new one if there is one."""
        return self._new.get(id(variable), self._before[id(variable)])

    def put(self, variable: Any, value: Any) -> None:
        """Note a variable's new value."""
        self._new[id(variable)] = np.asarray(value, self._before[id(variable)].dtype)

    def brought(self) -> list[np.ndarray]:
        """Return what this rank brings to the average: the changes of the trained variables, and the whole values."""
        state = self._state
        changes = [self.value(state.variables[n]) - self.value(state.starts[n]) for n in self._numbers]
        return [*changes, *map(self.value, self._whole)]

    def merge(self, means: Sequence[np.ndarray], delayed: bool = False) -> None:
        """Set variables to the filtered values, or to a mixture with what a delay has changed.

        Args:
          means: means over the ranks of what they have brought.
          delayed: True if this rank has trained since then.
        """
        state, rule = self._state, self._state.rule
        for n, mean in zip(self._numbers, means, strict=False):
            variable, start = state.variables[n], state.starts[n]
            last = self.value(state.changes[n]) if state.changes else None
            filtered, change = rule.filtered(mean, self.value(start), last)
            self.put(start, filtered)
            self.put(variable, rule.mixed(self.value(variable), filtered) if delayed else filtered)
            if state.changes:
                self.put(state.changes[n], change)
        for variable, mean in zip(self._whole, means[len(self._numbers) :], strict=True):
            self.put(variable, rule.mixed(self.value(variable), mean) if delayed else mean)

    def close(self) -> None:
        """Begin the next block: reset the optimizer's state, if it is to be, and the position."""
        for variable, initial in self._state.slots if self._state.rule.state == "reset" else ():
            first = self.value(initial) if hasattr(initial, "read_value") else initial
            self.put(variable, np.full_like(self.value(variable), first))
        self.put(self._state.position, 0)

    def store(self) -> None:
        """Set the variables that have new values."""
        self._program.load([(v, self._new[id(v)]) for v in self._variables if id(v) in self._new])


def land(program: Program, state: LocalSGDState) -> None:
    """Merge the result of the exchange in flight."""
    flying, state.in_flight = state.in_flight, None
    assert flying is not None
    end = BlockEnd(program, state, state.fragments[flying.fragment], flying.whole)
    end.merge(flying.results(), delayed=True)
    end.store()


def cut_off(program: Program, state: LocalSGDState, job: Job) -> None:
    """End the block, after which all ranks have the same values. Collective: all ranks.

    All fragments are exchanged, and also what rounding has lost in earlier exchanges. Before that, the result of an
    exchange in flight is merged.
    """
    if state.in_flight is not None:
        land(program, state)
    rule, numbers = state.rule, range(len(state.variables))
    lost = {n: job.world.size * rest.reshape(state.variables[n].shape) for n, rest in state.take_lost().items()}
    end = BlockEnd(program, state, numbers, [*state.averaged_whole, *state.moving])
    if end.value(state.position) > 0:
        brought = [own + lost.get(n, 0) for n, own in enumerate(end.brought())]
        end.merge([mean_of_ranks(own, job) for own in brought])
        end.close()
        lost = {}
    for n in sorted(lost):  # the last block lacks it: the formula is linear
        more, changed = rule.filtered(mean_of_ranks(lost[n], job), 0, 0)
        end.put(state.variables[n], end.value(state.variables[n]) + more)
        end.put(state.starts[n], end.value(state.variables[n]))
        if state.changes:
            end.put(state.changes[n], end.value(state.changes[n]) + changed)
    end.store()
