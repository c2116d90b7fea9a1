"""One step's way into the pool, handed to the stock Transformers modules as attention.

Owns where a step's new rows are written. The modules see one packed sequence [1, rows] of all runs;
they call `_attention` (it is registered under `ATTENTION`) with the new keys and values of a layer,
which are written before anything is read. It refuses to decide, and to know how attention is
computed (`engine/model/reading.py`): the tables come from the plan.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from engine.errors import Misconfigured
from engine.model.memory import sent
from engine.model.pool import Pool, slots_of
from engine.model.reading import Attention
from engine.step import Run

ATTENTION = "keepwarm"

# Arguments by which a model asks for another attention than a causal one, windowed or not.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


class PagedStep:
    """What every layer of one forward pass needs to know about the runs of a plan."""

    def __init__(self, pool: Pool, runs: Sequence[Run], attention: Attention) -> None:
        self._pool = pool
        written = [slots_of(run, pool.block_tokens, run.start) for run in runs]
        self._written = sent(np.concatenate(written), pool.device)
        self._attention = attention.over(runs)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scaling: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Write the new rows' keys and values, then attend; all are [rows, heads, head size]."""
        self._pool.put(layer, self._written, keys, values)
        return self._attention.attend(layer, query, scaling, window)


def _attention(  # noqa: PLR0917  Transformers passes them by position
    module: torch.nn.Module,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The signature of Transformers' attention interface; tensors are [1, heads, rows, size]."""
    asked = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if mask is not None or asked:
        raise Misconfigured(
            f"model uses attention with {', '.join(asked) or 'a mask of its own'}, which the paged "
            "cache does not compute: choose a model with plain causal attention"
        )
    step: PagedStep = options["paged"]
    out = step.attend(
        module.layer_idx,  # type: ignore[arg-type]  # every attention module counts its layer
        query[0].transpose(0, 1),
        keys[0].transpose(0, 1),
        values[0].transpose(0, 1),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=options.get("sliding_window"),
    )
    return out[None], None


AttentionInterface.register(ATTENTION, _attention)
