"""The operator zone's contents: personas, whose text every user's prompts may share.

A persona is a system prompt and few-shot examples. It is the stored way to instruct: it lies in the
operator zone, so its KV is computed once for everybody, while a caller's own `instructions` lie in
the caller's scope and end with the turn.
"""

import msgspec

from app.errors import NotFound
from app.ids import PersonaId
from engine.api import Message, Role


class Persona(msgspec.Struct, frozen=True, kw_only=True):
    """`version` grows with every change of what the model reads."""

    id: PersonaId
    name: str
    instructions: str
    examples: tuple[Message, ...] = ()
    """Few-shots, user and assistant in turns."""
    version: int = 1

    @property
    def messages(self) -> tuple[Message, ...]:
        """What stands at the head of every prompt under this persona."""
        return (Message(role=Role.SYSTEM, text=self.instructions), *self.examples)


DEFAULT_PERSONA = Persona(
    id=PersonaId("persona_default"),
    name="Assistant",
    instructions=(
        "You are a helpful assistant. Answer plainly and to the point: give the answer first, then"
        " the reason if it helps. Say so when you do not know. Use short paragraphs, and Markdown"
        " only where a list, a table or code reads better that way."
    ),
)
"""In the operator zone from the first start, so that new conversations share a prefix."""

_PERSONAS = {DEFAULT_PERSONA.id: DEFAULT_PERSONA}


def persona(persona_id: PersonaId) -> Persona:
    """The persona of this id. Raises `NotFound`."""
    found = _PERSONAS.get(persona_id)
    if found is None:
        raise NotFound(f"There is no persona {persona_id!r}.", field="persona_id")
    return found
