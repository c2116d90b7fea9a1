"""Law 3 under chat templates that are not prefix-stable: real model, real database."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers.utils import chat_template_utils

from app.chat.ledger import Node
from app.db.base import Database
from app.db.revisions import migrate
from app.errors import InvalidRequest
from app.events import ResponseEnded
from engine.api import Engine, Limits, Message, Receipt, RenderRequest, Seam, Stability
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.engines import as_served, open_local
from tests.kit.model import with_template
from tests.kit.templates import (
    ADDS_AN_EMPTY_THOUGHT,
    MARKS_EARLIER_QUESTIONS,
    PLAIN,
    PRINTS_THE_DATE,
    SHOWS_THE_LAST_THOUGHT,
    STRIPS_DIVISIONS,
)

several = pytest.mark.parametrize("turns", [4, pytest.param(10, marks=pytest.mark.long)])
MARKED = 'Write the HTML tag "</div>" and nothing else.'


@contextlib.asynccontextmanager
async def served(folder: Path, template: str) -> AsyncIterator[tuple[Engine, Domain]]:
    """The default model under a template of ours, and a domain that talks through it."""
    url = f"sqlite:///{folder}/keepwarm.db"
    await migrate(url)
    model = folder / "model"
    model.mkdir()
    config = as_served(model=with_template(model, template), context_tokens=2048)
    async with (
        contextlib.aclosing(Database(url)) as db,
        open_local(config) as engine,
        open_domain(db, engine) as domain,
    ):
        yield engine, domain


async def prompt_of(domain: Domain, end: ResponseEnded) -> tuple[tuple[int, ...], list[Node]]:
    """What a turn sent and got, from what is stored; and its path."""
    path = await domain.nodes(end.response.message_id)
    head = next(node.head_token_ids for node in reversed(path) if node.head_token_ids is not None)
    return head + sum((node.token_ids for node in path), ()), path


async def rendered_whole(engine: Engine, path: list[Node]) -> tuple[int, ...]:
    """What the template makes of the whole conversation, without a persona."""
    said = tuple(Message(role=node.role, text=node.text) for node in path)
    request = RenderRequest(messages=said, seam=Seam.START, opens_reply=False)
    return (await engine.render(request)).token_ids


def receipt_of(end: ResponseEnded) -> Receipt:
    assert end.response.receipt is not None
    return end.response.receipt


@pytest.mark.row("engine 1")
@several
@pytest.mark.parametrize(
    "template",
    [
        pytest.param(STRIPS_DIVISIONS, id="strips reasoning"),
        pytest.param(ADDS_AN_EMPTY_THOUGHT, id="adds an empty thought"),
        pytest.param(SHOWS_THE_LAST_THOUGHT, id="shows the last thought"),
    ],
)
async def test_03_turns_stay_warm_where_only_replies_would_be_rewritten(
    tmp_path: Path, template: str, turns: int
):
    async with served(tmp_path, template) as (engine, domain):
        card = await engine.info()
        ann = await new_person(domain.db)
        previous = None
        before: tuple[int, ...] = ()
        for number in range(turns):
            text = MARKED if number % 2 else f"Name animal number {number}."
            response = await domain.respond(
                ann, text, previous, limits=Limits(max_output_tokens=20)
            )
            previous = response
            end = await domain.ended(ann, response)
            receipt = receipt_of(end)
            ids, path = await prompt_of(domain, end)
            assert receipt.cached_tokens >= len(before) - 1
            assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens
            assert ids[: len(before)] == before
            before = ids
        whole = await rendered_whole(engine, path)

    assert card.template.stability is Stability.APPENDABLE
    assert whole[: len(before)] != before, "the template would have it otherwise"


@pytest.mark.row("engine 4")
@several
async def test_03_a_conversation_keeps_its_first_date_and_a_new_one_has_todays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
):
    today = datetime(2030, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda: today))
    async with served(tmp_path, PRINTS_THE_DATE) as (_, domain):
        ann = await new_person(domain.db)
        conversation = await domain.conversations.create(ann.user_id)
        before: tuple[int, ...] = ()
        for number in range(turns):
            today = datetime(2030, 1, 1 + number, tzinfo=UTC)
            end = await domain.say(ann, conversation.id, f"Name animal {number}.", max_tokens=8)
            ids, path = await prompt_of(domain, end)
            assert receipt_of(end).cached_tokens >= len(before) - 1
            assert ids[: len(before)] == before
            before = ids
        heads, receipts = [path[0].head_token_ids], []
        for _ in range(2):
            ben = await new_person(domain.db)
            other = await domain.conversations.create(ben.user_id)
            end = await domain.say(ben, other.id, "Name an animal.", max_tokens=8)
            heads.append((await prompt_of(domain, end))[1][0].head_token_ids)
            receipts.append(receipt_of(end))

    old, new, same = heads
    assert old != new == same
    assert new is not None
    assert receipts[0].cached_tokens < len(new) == receipts[1].cached_tokens


async def test_03_a_template_that_rewrites_what_was_said_is_rendered_whole(tmp_path: Path):
    async with served(tmp_path, MARKS_EARLIER_QUESTIONS) as (engine, domain):
        card = await engine.info()
        ann = await new_person(domain.db)
        previous = None
        for number in range(4):
            previous = await domain.respond(
                ann,
                f"Name animal number {number}.",
                previous,
                limits=Limits(max_output_tokens=8),
            )
            end = await domain.ended(ann, previous)
            receipt = receipt_of(end)
            ids, path = await prompt_of(domain, end)
            said = tuple(Message(role=node.role, text=node.text) for node in path[:-1])
            whole = await engine.render(
                RenderRequest(messages=said, seam=Seam.START, opens_reply=True)
            )
            assert ids[: receipt.prompt_tokens] == whole.token_ids
            assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens

    assert card.template.stability is Stability.UNSTABLE


@pytest.mark.row("engine 3")
async def test_03_a_failing_template_is_an_error_and_never_another_prompt(tmp_path: Path):
    picky = "{% if messages|length > 1 %}{{ raise_exception('one is enough') }}{% endif %}" + PLAIN
    async with served(tmp_path, picky) as (engine, domain):
        ann = await new_person(domain.db)
        first = await domain.respond(ann, "Say hi.", limits=Limits(max_output_tokens=4))
        await domain.ended(ann, first)
        jobs = (await engine.stats()).prompt_tokens
        with pytest.raises(InvalidRequest, match="one is enough"):
            await domain.respond(ann, "Again.", first)
        assert (await engine.stats()).prompt_tokens == jobs
