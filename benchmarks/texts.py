"""Seeded texts for prompts: plain words, each one token of the default model with its space."""

import random

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community "
    "name president team minute idea body information back parent face others level office door health "
    "person art war history party result change morning reason research girl guy moment air teacher force "
    "education harbour lamp wind tide ship captain island letter storm bell rope signal weather pilot "
    "channel winter journey village stone bridge garden market river forest mountain road machine paper "
    "music window table kitchen summer autumn bread coffee glass metal engine light shadow colour"
)


def text(name: str, words: int) -> str:
    """So many words; two names give texts that differ from the first words on."""
    chance = random.Random(name)  # noqa: S311
    return " ".join(chance.choices(_WORDS.split(), k=words))


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
