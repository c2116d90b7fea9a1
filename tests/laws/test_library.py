"""The laws of personas and documents on the real model: warm before they are asked for, for readers only."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from app.chat.library import DEFAULT_PERSONA, Access, Text
from app.db.base import Database
from app.db.revisions import migrate
from app.db.types import AccountRole, ItemKind, Visibility
from app.ids import DocumentId, PersonaId
from app.people.accounts import Principal
from engine.api import Engine, MissReason, Receipt
from engine.config import PREFIX_INDEXES, EngineConfig
from engine.remote import Care
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.engines import as_served, fork_remote, open_local
from tests.kit.server import POLL_S, Server, fork_server
from tests.kit.tab import person

EVERYBODY = Access(visibility=Visibility.EVERYBODY)
LONG = " ".join(f"Rule {n}: answer like the {n}th pirate of the seven seas." for n in range(12))
PIRATE = Text(name="Pirate", text=LONG)
QUESTION = "I have a long question about the ships that you said you saw."
CHARTER = Text(name="Charter", text="The ship has two masts, three decks and a crew of forty.")


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path}/keepwarm.db"
    await migrate(url)
    async with contextlib.aclosing(Database(url)) as database:
        yield database


def config(index: str = "radix") -> EngineConfig:
    return as_served(blocks=256, max_waiting=32, prefix_index=index)


@contextlib.asynccontextmanager
async def a_house(db: Database, index: str = "radix") -> AsyncIterator[tuple[Domain, Principal]]:
    """A domain on the real model, and its administrator."""
    async with open_local(config(index)) as engine, open_domain(db, engine) as domain:
        yield domain, await new_person(db, AccountRole.ADMIN)


async def publish(
    domain: Domain, boss: Principal, says: Text, access: Access = EVERYBODY
) -> PersonaId:
    made = await domain.library.create(boss.user_id, ItemKind.PERSONA, says, access)
    return PersonaId(made.summary.id)


async def put(
    domain: Domain, boss: Principal, says: Text = CHARTER, access: Access = EVERYBODY
) -> DocumentId:
    made = await domain.library.create(boss.user_id, ItemKind.DOCUMENT, says, access)
    return DocumentId(made.summary.id)


async def first_turn(
    domain: Domain,
    who: Principal,
    persona_id: PersonaId,
    *document_ids: DocumentId,
    text: str = "Who are you?",
) -> tuple[Receipt, int]:
    """What the first turn of a new conversation cost, and how long its head is."""
    made = await domain.conversations.create(who.user_id, persona_id, document_ids)
    end = await domain.say(who, made.id, text, max_tokens=2)
    receipt = end.response.receipt
    assert receipt is not None
    head = (await domain.nodes(end.response.message_id))[0].head_token_ids
    assert head is not None
    return receipt, len(head)


async def test_02_the_first_turn_under_what_is_warm_computes_only_its_own_text(sqlite: Database):
    async with a_house(sqlite) as (domain, boss):
        persona_id, document_id = await publish(domain, boss, PIRATE), await put(domain, boss)
        await domain.warming.refresh()
        ann = await new_person(sqlite)
        turns = [
            await first_turn(domain, ann, DEFAULT_PERSONA.id),
            await first_turn(domain, ann, persona_id),
            await first_turn(domain, ann, DEFAULT_PERSONA.id, document_id),
        ]

    for receipt, head in turns:
        assert receipt.cached_tokens == head
        assert receipt.computed_tokens == receipt.prompt_tokens - head
    assert turns[2][0].cached_by_source.document > 0


@pytest.mark.parametrize("index", PREFIX_INDEXES)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_02_ten_conversations_that_start_at_once_prefill_a_persona_once(
    sqlite: Database, index: str, *, warm: bool
):
    async with a_house(sqlite, index) as (domain, boss):
        persona_id = await publish(domain, boss, PIRATE)
        if warm:
            await domain.warming.refresh()
        people = [await new_person(sqlite) for _ in range(10)]
        turns = await asyncio.gather(
            *(
                first_turn(domain, one, persona_id, text=f"{n}. {QUESTION}")
                for n, one in enumerate(people)
            )
        )

    heads = {head for _, head in turns}
    assert len(heads) == 1
    (head,) = heads
    computed = sum(max(0, head - receipt.cached_tokens) for receipt, _ in turns)
    assert head % 16, "it ends inside a block, which is shared as well"
    assert computed == (0 if warm else head)


async def test_a_live_conversation_keeps_the_old_version_and_all_of_its_hits(sqlite: Database):
    async with a_house(sqlite) as (domain, boss):
        ann = await new_person(sqlite)
        persona_id = await publish(domain, boss, PIRATE)
        await domain.warming.refresh()
        old = await domain.conversations.create(ann.user_id, persona_id)
        first = await domain.say(ann, old.id, "Who are you?", max_tokens=4)
        newer = msgspec.structs.replace(PIRATE, text=f"Talk like a parrot. {LONG}")
        await domain.library.add_version(boss.user_id, ItemKind.PERSONA, persona_id, newer)
        await domain.warming.refresh()
        second = await domain.say(ann, old.id, "And where?", max_tokens=4)
        fresh, head = await first_turn(domain, ann, persona_id)
        await domain.conversations.move_to_newest(ann.user_id, old.id)
        third = await domain.say(ann, old.id, "And now?", max_tokens=4)
        fourth = await domain.say(ann, old.id, "Go on.", max_tokens=4)

    one, two, three, four = (end.response.receipt for end in (first, second, third, fourth))
    assert one is not None
    assert two is not None
    assert three is not None
    assert four is not None
    assert two.cached_tokens >= one.prompt_tokens + one.output_tokens - 1
    assert two.miss_reason is None
    assert fresh.cached_tokens == head
    assert three.miss_reason is MissReason.INSTRUCTIONS_CHANGED
    assert head <= three.cached_tokens < three.prompt_tokens - 1, (
        "the head is warm, the rest is not"
    )
    assert four.cached_tokens >= three.prompt_tokens + three.output_tokens - 1
    assert four.miss_reason is None


@pytest.mark.row("permission before lookup")
@pytest.mark.parametrize("index", PREFIX_INDEXES)
async def test_11_a_guess_of_what_one_may_not_read_hits_nothing(sqlite: Database, index: str):
    """As instructions, as a persona or document of one's own: it lies in the guesser's scope."""
    async with a_house(sqlite, index) as (domain, boss):
        ann, eve, mal, joe = [await new_person(sqlite) for _ in range(4)]
        own = Access(visibility=Visibility.OWNER)
        readers = Access(visibility=Visibility.LISTED, readers=(f"{ann.user_id}@example.org",))
        persona_id = await publish(domain, boss, PIRATE, readers)
        document_id = await put(domain, boss, access=readers)
        await domain.warming.refresh()
        theirs = [
            await first_turn(domain, ann, persona_id),
            await first_turn(domain, ann, DEFAULT_PERSONA.id, document_id),
        ]
        told = await domain.respond(eve, "Who are you?", instructions=LONG)
        as_instructions = (await domain.ended(eve, told)).response.receipt
        as_persona, _ = await first_turn(domain, mal, await publish(domain, mal, PIRATE, own))
        document = await put(domain, joe, CHARTER, own)
        as_document, _ = await first_turn(domain, joe, DEFAULT_PERSONA.id, document)
        _, default = await first_turn(domain, joe, DEFAULT_PERSONA.id)

    assert [receipt.cached_tokens for receipt, _ in theirs] == [head for _, head in theirs]
    assert as_instructions is not None
    assert as_instructions.cached_tokens == 0
    assert as_persona.cached_tokens == 0
    assert as_document.cached_tokens == default, "the default persona alone"


@pytest.mark.parametrize("index", PREFIX_INDEXES)
async def test_11_what_a_reader_deletes_takes_nothing_from_other_readers(
    sqlite: Database, index: str
):
    """Nor does a reader learn from hits that another was there and has left."""
    async with a_house(sqlite, index) as (domain, boss):
        ann, ben = await new_person(sqlite), await new_person(sqlite)
        emails = tuple(f"{one.user_id}@example.org" for one in (ann, ben))
        readers = Access(visibility=Visibility.LISTED, readers=emails)
        persona_id = await publish(domain, boss, PIRATE, readers)
        conversation = await domain.conversations.create(ann.user_id, persona_id)
        await domain.say(ann, conversation.id, "Who are you?", max_tokens=2)
        await domain.supervisor.delete_conversation(ann, conversation.id)
        receipt, head = await first_turn(domain, ben, persona_id)

    assert receipt.cached_tokens == head


async def test_a_new_life_of_the_engine_is_warmed_by_the_server_itself(sqlite: Database):
    care = Care(heartbeat_s=0.2, backoff_s=0.0)
    async with fork_remote(config(), care) as engine, open_domain(sqlite, engine) as domain:
        ann = await new_person(sqlite)
        async with domain.warming.running():
            await until_warm(domain, engine, not_in="")
            boot_id = (await engine.info()).boot_id
            assert engine.pid is not None
            psutil.Process(engine.pid).send_signal(signal.SIGKILL)
            await until_warm(domain, engine, not_in=boot_id)
            receipt, head = await first_turn(domain, ann, DEFAULT_PERSONA.id)

    assert receipt.boot_id != boot_id
    assert receipt.cached_tokens == head


async def until_warm(domain: Domain, engine: Engine, *, not_in: str) -> None:
    """Until the default persona is warm in another life of the engine than this one."""
    async with asyncio.timeout(120):
        while not domain.warming.warm or domain.warming.boot_id == not_in:
            # Answered between two steps: nobody tells when a head is warm.
            await engine.stats()


async def test_a_server_is_warm_soon_after_it_started(tmp_path: Path):
    with fork_server() as server:
        async with person(server) as ann:
            await until_computed(server)
            conversation_id = await ann.conversation()
            async with ann.tab() as tab:
                await tab.subscribe(conversation_id)
                accepted = await tab.say(conversation_id, "Who are you?")
                ended = await tab.taste(accepted.response.id)

    receipt = ended.response.receipt
    assert receipt is not None
    assert receipt.cached_by_source.persona > 0
    assert receipt.cached_by_source.session == 0
    assert receipt.computed_tokens < 32, "its own text and what is around it"


async def until_computed(server: Server) -> None:
    """Until the server's figures tell of a job that ended: nobody has asked it anything."""
    headers = {"authorization": f"Bearer {server.api_key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        async with asyncio.timeout(60):
            # Figures are asked for; nobody tells when they change.
            ended = re.compile(r'keepwarm_requests_total\{finished_reason="length"\} [1-9]')
            while not ended.search((await client.get("/metrics")).text):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(POLL_S)
