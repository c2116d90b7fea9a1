"""Which prefix index: made by the name that the settings give it."""

from engine.errors import Misconfigured
from engine.kv.blocks import BlockPool
from engine.kv.hashed import HashedIndex
from engine.kv.prefix import PrefixIndex
from engine.kv.radix import RadixIndex


def new_index(name: str, pool: BlockPool, block_tokens: int, model_fingerprint: str) -> PrefixIndex:
    """An empty index. Raises `Misconfigured` for a name that stands for none."""
    match name:
        case "radix":
            return RadixIndex(pool, block_tokens)
        case "hashed":
            return HashedIndex(pool, block_tokens, model_fingerprint=model_fingerprint)
        case _:
            raise Misconfigured(f"prefix_index is {name!r}: use radix or hashed")
