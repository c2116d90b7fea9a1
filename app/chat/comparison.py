"""Comparison: what a prompt has in common with that of a response that its client names. PURE.

    sent before  [head] [turn 1] .. [turn n]
    sent now     [head] [turn 1] .. [something else ..
                 |<----- shared ---->|<---- affected ----

Told by what was sent, not by what the cache held: a prompt that begins with all that was sent before has
lost nothing, and whether it was still there to be found is for its receipt to say.
"""

from itertools import chain

from app.chat.asked import Compared, Difference, Tools
from app.chat.headed import shared_tokens
from app.chat.ledger import Branch
from app.chat.prompt import Prompt
from app.ids import ResponseId
from engine.api import ModelCard


def compare(
    named: ResponseId,
    before: Branch | None,
    prompt: Prompt,
    *,
    card: ModelCard,
    tools: Tools | None,
    shortened: bool,
) -> Compared:
    """`before` ends with the response that is named; None where the caller has none of that name."""
    if before is None or before.last is None:
        return Compared(response_id=named, is_known=False)
    receipt = before.last.view.receipt
    if receipt is None or before.head is None:
        return Compared(response_id=named)
    nodes = chain.from_iterable(node.token_ids for node in before.path)
    sent = (*before.head.token_ids, *nodes)[: receipt.prompt_tokens]
    shared = shared_tokens(sent, prompt.token_ids)
    difference = None
    if shared < len(sent):
        if receipt.model_fingerprint != card.model_fingerprint:
            difference = Difference.MODEL
        elif _declared(before.last.asked.tools) != _declared(tools):
            difference = Difference.TOOLS
        else:
            difference = Difference.SHORTENED if shortened else Difference.INPUT
    return Compared(
        response_id=named, tokens=len(sent), shared_tokens=shared, difference=difference
    )


def _declared(tools: Tools | None) -> tuple[object, ...]:
    return () if tools is None else tools.functions
