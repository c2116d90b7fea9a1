"""The laws of conversations on the real model and on real databases."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select

from app.chat.ledger import Act
from app.chat.sequels import Source
from app.db.base import Database
from app.db.models import Message, Response
from app.db.revisions import migrate
from app.db.types import AccountRole
from app.events import LogEvent, ResponseEnded, ResponseStatus, TextDelta
from app.ids import LoginId, UserId
from app.people.accounts import Principal
from engine.api import Engine, Limits, MissReason, Receipt, RenderRequest, Role, Seam
from engine.api import Message as Said
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import EchoEngine
from tests.kit.engines import as_served, open_local
from tests.kit.killed import Acknowledged


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path}/keepwarm.db"
    await migrate(url)
    async with contextlib.aclosing(Database(url)) as database:
        yield database


async def prompt_of(domain: Domain, response_id: str) -> tuple[int, ...]:
    """What a turn sent, from what is stored: head and path, without the reply."""
    async with domain.db.read() as session:
        row = await session.get_one(Response, response_id)
    assert row.parent_id is not None
    path = await domain.nodes(row.parent_id)
    head = next(node.head_token_ids for node in reversed(path) if node.head_token_ids is not None)
    return head + sum((node.token_ids for node in path), ())


async def render_whole(engine: Engine, *messages: tuple[Role, str]) -> tuple[int, ...]:
    said = tuple(Said(role=role, text=text) for role, text in messages)
    request = RenderRequest(messages=said, seam=Seam.START, opens_reply=True)
    return (await engine.render(request)).token_ids


@pytest.mark.row("engine 1")
async def test_03_the_stored_ids_are_the_prompt_and_only_grow(sqlite: Database):
    """Complete answers and cut ones, a warm-up and a fork: nothing old is derived again."""
    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        conversation = await domain.conversations.create(ann.user_id)
        before: tuple[int, ...] = ()
        for number in range(6):
            end = await domain.say(ann, conversation.id, f"Tell me of {number}.", max_tokens=8)
            receipt, prompt = end.response.receipt, await prompt_of(domain, end.response.id)
            reply = (await domain.nodes(end.response.message_id))[-1]
            assert receipt is not None
            assert prompt[: len(before)] == before
            assert receipt.prompt_tokens == len(prompt)
            assert receipt.cached_tokens + receipt.computed_tokens == len(prompt)
            assert receipt.output_tokens == len(reply.token_ids)
            assert receipt.cached_tokens >= len(before) - 1
            before = prompt + reply.token_ids


async def test_03_stored_ids_equal_the_whole_rendering(sqlite: Database):
    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        first = await domain.respond(ann, "Say hi.", instructions="Be brief.")
        await domain.ended(ann, first)
        second = await domain.respond(ann, "Again.", first, instructions="Be brief.")
        await domain.ended(ann, second)
        bare = await domain.respond(ann, "Say hi.", store=True)
        await domain.ended(ann, bare)

        system = (Role.SYSTEM, "Be brief.")
        assert await prompt_of(domain, first.id) == await render_whole(
            engine, system, (Role.USER, "Say hi.")
        )
        assert await prompt_of(domain, bare.id) == await render_whole(
            engine, (Role.USER, "Say hi.")
        )
        reply = (await domain.nodes(first.message_id))[-1]
        whole = await render_whole(
            engine,
            system,
            (Role.USER, "Say hi."),
            (Role.ASSISTANT, reply.text),
            (Role.USER, "Again."),
        )
        assert reply.seam is Seam.STOPPED
        assert await prompt_of(domain, second.id) == whole


async def test_02_a_title_costs_the_next_turn_nothing(tmp_path: Path):
    """Whether it has ended by then, or the turn has to stop it."""
    receipts: dict[bool, list[dict[str, object]]] = {}
    for titles in (True, False):
        url = f"sqlite:///{tmp_path}/{titles}.db"
        await migrate(url)
        async with (
            contextlib.aclosing(Database(url)) as db,
            open_local(as_served()) as engine,
            open_domain(db, engine, titles=titles) as domain,
        ):
            ann = await new_person(db)
            told = receipts[titles] = []
            for waits in (True, False):
                conversation = await domain.conversations.create(ann.user_id)
                for text in ("Name an animal of the sea.", "And a plant?"):
                    end = await domain.say(ann, conversation.id, text, max_tokens=12)
                    told.append(_cost(end.response.receipt))
                    if waits:
                        await domain.titled()

    assert receipts[True] == receipts[False]


async def test_02_a_summary_costs_its_source_nothing_and_what_goes_on_is_warm(sqlite: Database):
    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        summaries = domain.supervisor.summaries
        ann = await new_person(sqlite)
        source = await domain.conversations.create(ann.user_id)
        await domain.say(ann, source.id, "Name an animal.", max_tokens=12)
        end = await domain.say(ann, source.id, "And a plant?", max_tokens=12)
        before = len(await prompt_of(domain, end.response.id)) + 12
        asked = Source(source.id, end.response.message_id, "s1")
        made = await summaries.go_on(ann.user_id, asked)
        (_, summary) = await domain.conversations.messages(ann.user_id, made.id)
        assert summary.response is not None
        assert summary.response.receipt is not None
        told = summary.response.receipt
        path = await domain.nodes(summary.id)
        assert told.cached_tokens >= before - 2
        assert told.output_tokens == len(path[-1].token_ids)

        next_turn = await domain.say(ann, source.id, "Now a stone.", max_tokens=4)
        first = await domain.say(ann, made.id, "Now a stone.", max_tokens=4)

    assert next_turn.response.receipt is not None
    assert next_turn.response.receipt.cached_tokens >= before - 2
    assert first.response.receipt is not None
    known = sum(len(node.token_ids) for node in path) + len(path[0].head_token_ids or ())
    assert first.response.receipt.cached_tokens >= known - 1
    assert first.response.receipt.miss_reason is None


async def test_16_a_cut_is_a_new_branch_and_what_follows_is_appended(sqlite: Database):
    """The receipt says where the prompt departs from what was sent before: behind the head."""
    config = as_served(context_tokens=256)
    async with open_local(config) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        response, prompts, receipts = None, [], []
        for number in range(10):
            text = f"Tell me of {number}. " + "It was a long day at sea. " * 4
            more = {"shortenable": True, "limits": Limits(max_output_tokens=8)}
            asked = await domain.respond(ann, text, response, instructions="Be brief.", **more)
            response = (await domain.ended(ann, asked)).response
            prompts.append(await prompt_of(domain, response.id))
            receipts.append(response.receipt)

    assert all(len(prompt) < 256 for prompt in prompts)
    cuts = 0
    for (before, now), receipt in zip(pairwise(prompts), receipts[1:], strict=True):
        assert receipt is not None
        if now[: len(before)] == before:
            assert receipt.cached_tokens >= len(before)
            assert receipt.miss_reason is None
        else:
            cuts += 1
            assert receipt.miss_reason is MissReason.NEW_BRANCH
            assert receipt.differs_at is not None
            assert before[: receipt.differs_at] == now[: receipt.differs_at]
            assert before[receipt.differs_at] != now[receipt.differs_at]
    assert 2 <= cuts <= 4


def _cost(receipt: Receipt | None) -> dict[str, object]:
    """What it says but for times and places."""
    assert receipt is not None
    told = msgspec.structs.asdict(receipt)
    return {key: value for key, value in told.items() if key[-2:] != "_s" and key != "boot_id"}


async def test_11_two_users_share_the_persona_and_nothing_else(sqlite: Database):
    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        ends = []
        for _ in range(2):
            who = await new_person(sqlite)
            conversation = await domain.conversations.create(who.user_id)
            ends.append(await domain.say(who, conversation.id, "The same words.", max_tokens=4))

        first, second = (end.response.receipt for end in ends)
        assert first is not None
        assert second is not None
        assert first.cached_tokens == 0
        head = (await domain.nodes(ends[1].response.message_id))[0].head_token_ids
        assert head is not None
        assert second.cached_tokens == second.cached_by_source.persona == len(head)


async def test_13_a_reader_who_comes_back_has_every_token_once(sqlite: Database):
    """Law 14 as well: whoever reads, and however often they break off, reads the same log."""

    async def read_in_pieces(domain: Domain, who: Principal, response_id) -> list[LogEvent]:
        events: list[LogEvent] = []
        while True:
            log = await domain.supervisor.log(who, response_id, len(events) - 1)
            async with contextlib.aclosing(log.subscribe(len(events) - 1)) as piece:
                async for event in piece:
                    events.append(event)
                    if len(events) % 3 == 0:
                        break
                else:
                    return events

    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        conversation = await domain.conversations.create(ann.user_id)
        accepted = await domain.send(ann, conversation.id, "Count to ten.", max_tokens=24)
        pieces, whole = await asyncio.gather(
            read_in_pieces(domain, ann, accepted.response.id),
            domain.events(ann, accepted.response),
        )

    assert pieces == whole
    assert [event.sequence_number for event in whole] == list(range(len(whole)))


async def test_15_a_stopped_turn_computes_no_more_and_holds_nothing(sqlite: Database):
    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        conversation = await domain.conversations.create(ann.user_id)
        accepted = await domain.send(ann, conversation.id, "Tell a long story.", max_tokens=400)
        await domain.until(ann, accepted.response, TextDelta, times=4)
        step = await domain.supervisor.cancel(ann, accepted.response.id)
        end = await domain.ended(ann, accepted.response)
        stats = await engine.stats()
        after = await domain.say(ann, conversation.id, "Shorter, please.", max_tokens=8)
        sent = await prompt_of(domain, accepted.response.id)

    assert step is not None
    assert stats.steps <= step + 1
    assert (stats.running_jobs, stats.blocks.in_use) == (0, 0)
    assert end.response.status is ResponseStatus.CANCELLED
    assert end.response.receipt is not None
    assert end.text
    assert after.response.receipt is not None
    reused = len(sent) + end.response.receipt.output_tokens - 1
    assert after.response.receipt.cached_tokens >= reused


async def test_16_a_fork_reuses_the_kv_of_what_it_shares(sqlite: Database):
    async with open_local(as_served()) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        root = await domain.respond(ann, "Name three animals.")
        await domain.ended(ann, root)
        shared = len(await prompt_of(domain, root.id))
        for text in ("And now plants.", "And now stones."):
            fork = await domain.respond(ann, text, root)
            receipt = (await domain.ended(ann, fork)).response.receipt
            assert receipt is not None
            assert (
                receipt.cached_tokens
                >= shared + len((await domain.nodes(root.message_id))[-1].token_ids) - 1
            )


@pytest.mark.parametrize(
    "acknowledgements",
    [9, pytest.param(1, marks=pytest.mark.long), pytest.param(30, marks=pytest.mark.long)],
)
async def test_17_a_killed_server_has_every_turn_that_it_acknowledged(
    db: Database, database_url: str, acknowledgements: int
):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.kit.killed", database_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    user_id = UserId((await process.stdout.readline()).decode().strip())
    lines = [await process.stdout.readline() for _ in range(acknowledgements)]
    process.kill()
    rest = await process.stdout.read()
    lines += [line for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
    await process.wait()
    acknowledged = [msgspec.json.decode(line, type=Acknowledged) for line in lines]
    ann = Principal(
        user_id=user_id, role=AccountRole.MEMBER, via="login", credential_id=LoginId("login_1")
    )

    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        async with db.read() as session:
            rows = list(await session.scalars(select(Message)))
            open_now = select(Response).where(Response.status == ResponseStatus.IN_PROGRESS)
            left = list(await session.scalars(open_now))
        stored = {(row.conversation_id, row.client_message_id): row.text for row in rows}
        conversations = {one.conversation_id for one in acknowledged}
        for one in acknowledged:
            assert stored[one.conversation_id, one.client_message_id] == one.text
        for conversation_id in conversations:
            end = await domain.say(ann, conversation_id, "still there?")
            sent = await prompt_of(domain, end.response.id)
            assert sent == engine.jobs[-1].token_ids

    assert left == []
    assert len(acknowledged) >= acknowledgements


async def test_16_edits_and_regenerated_answers_compute_only_what_is_new(sqlite: Database):
    async with open_local() as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        conversation = await domain.conversations.create(ann.user_id)
        await domain.say(ann, conversation.id, "Tell me of lighthouses.", max_tokens=12)
        end = await domain.say(ann, conversation.id, "And of their keepers?", max_tokens=12)
        question_id = end.response.parent_id
        assert question_id is not None
        sent = await prompt_of(domain, end.response.id)

        again = await domain.ended(
            ann, (await domain.act(ann, Act.REGENERATE, end.response, max_tokens=12)).response
        )
        edited = await domain.ended(
            ann,
            (await domain.act(ann, Act.EDIT, question_id, text="And of ships?")).response,
        )

        assert await prompt_of(domain, again.response.id) == sent
        assert again.text == end.text, "greedy: the same ids give the same answer"
        assert again.response.receipt is not None
        assert again.response.receipt.computed_tokens == 1
        *_, question, _ = await domain.nodes(edited.response.message_id)
        assert edited.response.receipt is not None
        assert edited.response.receipt.computed_tokens <= len(question.token_ids)


async def test_15_a_continued_answer_is_the_one_that_was_never_cut(sqlite: Database):
    """Wherever it was cut: in a word, or in the middle of a character of several tokens."""
    text, whole_tokens = "Repeat: 🗼 naïve Ωmega 灯台", 24
    async with open_local() as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)

        async def say(tokens: int) -> ResponseEnded:
            conversation = await domain.conversations.create(ann.user_id)
            return await domain.say(ann, conversation.id, text, max_tokens=tokens)

        async def continued(cut: int) -> ResponseEnded:
            stopped = await say(cut)
            assert stopped.response.incomplete_reason and stopped.text
            accepted = await domain.act(
                ann, Act.CONTINUE, stopped.response, max_tokens=whole_tokens - cut
            )
            return await domain.ended(ann, accepted.response)

        async def ids_of(end: ResponseEnded) -> tuple[int, ...]:
            return (await domain.nodes(end.response.message_id))[-1].token_ids

        whole = await say(whole_tokens)
        kept = await ids_of(whole)
        ends = await asyncio.gather(*(continued(cut) for cut in range(1, 12)))

        for cut, end in enumerate(ends, 1):
            assert (cut, end.text) == (cut, whole.text)
            assert (cut, await ids_of(end)) == (cut, kept)
            assert end.response.receipt is not None
            assert (cut, end.response.receipt.computed_tokens <= 1) == (cut, True)
