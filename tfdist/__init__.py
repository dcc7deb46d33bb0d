"""Data-parallel training for TensorFlow: ``import tfdist``, then ``mpirun -n N python script.py``.

Importing this package rewrites training graphs. Every variable starts with rank 0's value. Every gradient is averaged
over the ranks before any other operation reads it. Evaluation and inference graphs stay as they are. Without a
launcher, the import changes nothing, unless settings change how one process trains (``accumulate_steps``, for example).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.core.own_programs import runs_own_program
from tfdist.core.settings import Settings, SettingsError
from tfdist.start import process
from tfdist.transport.errors import DisagreementError, PeerError

if not runs_own_program():
    process()

if TYPE_CHECKING:
    from tfdist import extend as extend
    from tfdist import schedules as schedules
    from tfdist.api import *
    from tfdist.api_collectives import *
    from tfdist.api_ddl import *
    from tfdist.api_updates import *
    from tfdist.ddl_keras import *
else:
    _PARTS = "extend", "horovod", "keras", "schedules"
    _CALLBACKS = "DDLCallback", "DDLGlobalVariablesCallback"  # not in __all__: they import Keras

    def __getattr__(name: str) -> Any:
        """Import a module at the first use of a name, so that TensorFlow and Keras are imported only where needed."""
        if name in _PARTS:
            return importlib.import_module(f"tfdist.{name}")
        if name in __all__ or name in _CALLBACKS:
            for module in ("api", "api_collectives", "api_ddl", "api_updates", "ddl_keras"):
                found = vars(importlib.import_module(f"tfdist.{module}"))
                if name in found:
                    globals()[name] = found[name]
                    return found[name]
        from tfdist.core.suggestions import no_attribute

        raise AttributeError(no_attribute(name, __all__), name=name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_CALLBACKS, *_PARTS})


__version__ = "0.1.0"

__all__ = [
    "DisagreementError",
    "PeerError",
    "Settings",
    "SettingsError",
    "Ranks",
    "abort",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "allreduce_n",
    "alone",
    "ask_to_stop",
    "asked_to_stop",
    "average_loss",
    "average_variables",
    "barrier",
    "bcast",
    "broadcast",
    "broadcast_variables",
    "configure",
    "disable_bcast",
    "disable_broadcast",
    "enable_bcast",
    "enable_broadcast",
    "end_block",
    "grads_reduce",
    "init",
    "join",
    "keep_own",
    "larc",
    "larc_gradients",
    "last_step",
    "local_rank",
    "local_size",
    "new_group",
    "num_hosts",
    "rank",
    "reduce_scatter",
    "scale_learning_rate",
    "shard",
    "size",
    "uninstall",
]
