"""The prefix index as a radix tree: an entry is a run of tokens, split where paths part.

The default. One lookup and one comparison for a whole run, however long: a conversation is found
in as many steps as it has forks.
"""

from engine.kv.tree import EntryTree


class RadixIndex(EntryTree):
    """See `PrefixIndex`. Finds by nothing but the tree."""
