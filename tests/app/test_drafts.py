"""Drafts and presence on a server whose engine is held: what is computed, and what is let go."""

import functools
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat import drafts, liveness
from app.chat import typed as typed_text
from app.chat.typed import is_finished, settled, shared_start
from app.events import ResponseEnded
from app.frames import Draft, Presence, PresenceState
from app.ids import ConversationId, MessageId
from app.people.rates import Rate
from engine.api import (
    Forget,
    Hold,
    Job,
    JobClass,
    Message,
    RenderRequest,
    RetentionClass,
    Role,
    Seam,
    Subject,
    Warm,
    Withdraw,
)
from engine.model.template import Renderer
from tests.kit.echo import text_of
from tests.kit.model import loaded_model
from tests.kit.peers import engine_of, open_engine, somebody_at, until
from tests.kit.serving import Serving, serving
from tests.kit.tab import Person, Tab

# ---------------------------------------------------------------- what is stable of a draft

SCRIPTS = (
    "The KV entry of token 17 depends only on tokens 1..17, doesn't it? ",
    "for (int i = 0; i < n; ++i) { total += values[i]; }\n\n\t// done\n",
    "Donaudampfschifffahrtsgesellschaftskapitän; Rindfleischetikettierung. ",
    "人工智能是计算机科学的一个分支，它企图了解智能的实质。",  # noqa: RUF001
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "مرحبا بالعالم، كيف حالك اليوم؟ ",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈🏳️‍🌈 ok ",
    "a  b   c\n\n\n  1234567890 !!! ... <|im_start|> <|im_end|> ",
)
typed = st.lists(
    st.one_of(st.sampled_from(SCRIPTS), st.text(max_size=8)), min_size=1, max_size=4
).map("".join)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    loaded = loaded_model()
    return Renderer(loaded.tokenizer, loaded.eos_token_ids)


def ids_of(renderer: Renderer, text: str) -> tuple[int, ...]:
    message = Message(role=Role.USER, text=text)
    request = RenderRequest(messages=(message,), seam=Seam.CLOSED, opens_reply=True)
    return renderer.render(request).token_ids


@given(text=typed, cut=st.integers(0, 200), more=typed)
@settings(max_examples=400, deadline=None)
def test_03_what_is_kept_of_a_draft_is_how_every_longer_text_begins(renderer, text, cut, more):
    draft = text[:cut] if text[:cut].strip() else "x"
    kept = shared_start(ids_of(renderer, draft), ids_of(renderer, settled(draft)))

    # A long end without spaces is cut where the tokens may change; everything else is certain.
    certain = settled(draft) == "" or draft[len(settled(draft))].isspace()
    final = ids_of(renderer, draft + more)
    assert final[: len(kept)] == kept or not certain


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_little_of_a_draft_is_held_back_and_guesses_are_right(renderer, script):
    text = (script * 10)[:300].strip()
    final = ids_of(renderer, text)
    wrong = 0
    for cut in range(1, len(text) + 1):
        whole = ids_of(renderer, text[:cut])
        kept = shared_start(whole, ids_of(renderer, settled(text[:cut])))
        wrong += final[: len(kept)] != kept
        assert len(whole) - len(kept) <= 9 + 3 * typed_text.OPEN_TAIL

    assert wrong <= len(text) // 20


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("Is it?", True),
        ("It is (or so).", True),
        ('He said "no!"', True),
        ("是的。", True),
        ("It is, or so", False),
        ("It is. Or", False),
        ("(it is)", False),
        ("", False),
    ],
)
def test_a_text_is_finished_where_its_last_sentence_is_closed(text: str, finished: bool):
    assert is_finished(text) is finished


# ---------------------------------------------------------------- one server, its engine in hand


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("drafts"), open_engine) as running:
        yield running


@pytest.fixture
async def somebody(site: Serving, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Person]:
    """At a server that has heard nothing yet, and takes drafts however fast they come."""
    monkeypatch.setattr(drafts, "DRAFTS_PER_SOCKET", Rate(acts="drafts", burst=1000, per_s=1))
    lines = site.service.supervisor.drafts._lines
    await until(site, lambda: not (engine_of(site)._running or lines))
    engine_of(site).jobs.clear()
    engine_of(site).leases.clear()
    async with somebody_at(site) as person:
        yield person
    site.call(engine_of(site).release)


def drafted(site: Serving) -> list[Job]:
    return [job for job in engine_of(site).jobs if job.job_class is JobClass.DRAFT]


def running(site: Serving) -> list[Job]:
    return [job for job in drafted(site) if job.job_id in engine_of(site)._running]


async def type_in(
    tab: Tab,
    conversation_id: ConversationId | None,
    text: str,
    parent_id: MessageId | None = None,
) -> None:
    await tab.send(Draft(conversation_id=conversation_id, parent_id=parent_id, text=text))


async def test_a_draft_is_a_warm_up_of_the_lowest_class_without_its_last_word(site, somebody):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await type_in(tab, conversation_id, "what is the tide")
        await until(site, lambda: bool(drafted(site)))
        (job,) = drafted(site)
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "what is the tidal range")
        await tab.event(accepted.response.id, ResponseEnded)
        turn = engine_of(site).jobs[-1]

    assert (job.session_id, job.durable, job.limits.max_output_tokens) == (
        conversation_id,
        False,
        0,
    )
    assert text_of(job.token_ids).endswith("what is the")
    assert turn.token_ids[: len(job.token_ids)] == job.token_ids
    assert [zone.scope for zone in job.zones] == [zone.scope for zone in turn.zones]
    assert job.zones[-1].end == len(job.token_ids)


async def test_a_finished_draft_is_the_turn_itself_but_for_its_last_token(site, somebody):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await type_in(tab, conversation_id, "What is the tide?")
        await until(site, lambda: bool(drafted(site)))
        (job,) = drafted(site)
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "What is the tide?")
        await tab.event(accepted.response.id, ResponseEnded)
        turn = engine_of(site).jobs[-1]

    assert job.token_ids == turn.token_ids[:-1]
    assert job.zones[-1].end == len(job.token_ids)


async def test_a_newer_draft_supersedes_the_one_that_runs_and_the_ones_that_wait(site, somebody):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        site.call(engine_of(site).hold)
        await type_in(tab, conversation_id, "one ")
        await until(site, lambda: len(drafted(site)) == 1)
        for text in ("one two x", "one two three x", "one two three four x"):
            await type_in(tab, conversation_id, text)
        await until(site, lambda: text_of(drafted(site)[-1].token_ids).endswith("four"))
        first, last = drafted(site)[0], drafted(site)[-1]
        still = running(site)

    assert first not in still
    assert still == [last]


async def test_sending_drops_the_draft_before_the_turn_is_asked_for(site, somebody):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await tab.subscribe(conversation_id)
        site.call(engine_of(site).hold)
        await type_in(tab, conversation_id, "one two three")
        await until(site, lambda: bool(running(site)))
        accepted = await tab.say(conversation_id, "one two three")
        await until(site, lambda: not running(site))
        site.call(engine_of(site).release)
        await tab.event(accepted.response.id, ResponseEnded)


async def test_a_draft_without_a_conversation_is_of_the_one_that_is_made_next(site, somebody):
    async with somebody.tab() as tab:
        await type_in(tab, None, "one two three")
        await until(site, lambda: bool(drafted(site)))
        conversation_id = await somebody.conversation()
        another_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "one two three")
        await tab.event(accepted.response.id, ResponseEnded)
        (job,), turn = drafted(site), engine_of(site).jobs[-1]

    assert another_id != conversation_id == job.session_id
    assert turn.token_ids[: len(job.token_ids)] == job.token_ids
    assert text_of(job.token_ids).endswith("one two")


async def test_a_draft_without_a_conversation_is_forgotten_with_its_socket(site, somebody):
    async with somebody.tab() as one, somebody.tab() as two:
        for tab in (one, two):
            await type_in(tab, None, "one two three")
        await until(site, lambda: len(drafted(site)) == 2)
        conversation_id = await somebody.conversation()

    typed = {job.session_id for job in drafted(site)}
    assert len(typed | {conversation_id}) == 3, "which of two it comes from nobody can tell"
    await until(site, lambda: all((one, Forget()) in wishes(site) for one in typed))


@pytest.mark.row("drafts")
@pytest.mark.parametrize("how", ["socket", "withdrawn", "deleted"])
async def test_a_draft_ends_when_its_writer_is_gone(site, somebody, how: str):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        site.call(engine_of(site).hold)
        await type_in(tab, conversation_id, "one two three")
        await until(site, lambda: bool(running(site)))
        if how == "withdrawn":
            await type_in(tab, conversation_id, "  ")
            await until(site, lambda: not running(site))
        elif how == "deleted":
            await somebody.client.delete(f"/api/conversations/{conversation_id}")
            assert not running(site)
    await until(site, lambda: not running(site))


def withdrawn(site: Serving, conversation_id: ConversationId) -> int:
    subjects = [subject for subject, wish in engine_of(site).leases if isinstance(wish, Withdraw)]
    return sum(str(one.subject_id) == conversation_id for one in subjects)


@pytest.mark.row("drafts")
@pytest.mark.parametrize("how", ["emptied", "left", "rests"])
async def test_what_was_computed_of_a_draft_is_forgotten_with_it(
    site, somebody, monkeypatch, how: str
):
    monkeypatch.setattr(drafts, "REST_S", 0.0 if how == "rests" else 900.0)
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await type_in(tab, conversation_id, "one two three")
        if how != "rests":
            await until(site, lambda: bool(drafted(site)))
        if how == "emptied":
            await until(site, lambda: not site.service.supervisor.drafts._lines)
            await type_in(tab, conversation_id, "  ")
        if how != "left":
            await until(site, lambda: withdrawn(site, conversation_id) == 1)
    await until(site, lambda: withdrawn(site, conversation_id) == 1)
    assert not site.service.supervisor.drafts._unsent


async def test_what_another_page_types_as_well_stays_and_what_is_sent_is_used(site, somebody):
    conversation_id, other_id = await somebody.conversation(), await somebody.conversation()
    unsent = site.service.supervisor.drafts._unsent
    async with somebody.tab() as one:
        async with somebody.tab() as two:
            for tab in (one, two):
                await type_in(tab, conversation_id, "one two three")
            await type_in(two, other_id, "one two three")
            await until(site, lambda: sum(len(each.typists) for each in unsent.values()) == 3)
            await until(site, lambda: len({job.session_id for job in drafted(site)}) == 2)
            await two.subscribe(other_id)
            said = await two.say(other_id, "one two three")
            await two.story(said.response.id)
        await until(site, lambda: sum(len(each.typists) for each in unsent.values()) == 1)
        assert not withdrawn(site, conversation_id)
    await until(site, lambda: withdrawn(site, conversation_id) == 1)
    assert not withdrawn(site, other_id)


@pytest.mark.row("rates")
async def test_drafts_that_come_too_fast_are_ignored(site, somebody, monkeypatch):
    monkeypatch.setattr(drafts, "DRAFTS_PER_SOCKET", Rate(acts="drafts", burst=1, per_s=1e-9))
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await type_in(tab, conversation_id, "one two")
        await type_in(tab, conversation_id, "one two three")
        await tab.subscribe(conversation_id)
        await until(site, lambda: not site.service.supervisor.drafts._lines)

    assert len(drafted(site)) <= 1


async def test_who_had_much_computed_waits_for_the_end_of_the_window(site, somebody, monkeypatch):
    monkeypatch.setattr(drafts, "BUDGET_TOKENS", 1)
    conversation_id = await somebody.conversation()
    site.call(site.service.supervisor.drafts._spent.clear)
    async with somebody.tab() as tab:
        for text in ("one two", "one two three four"):
            await type_in(tab, conversation_id, text)
            await tab.subscribe(conversation_id)
            await until(site, lambda: not site.service.supervisor.drafts._lines)

    assert len(drafted(site)) == 1
    site.call(site.service.supervisor.drafts._spent.clear)


def test_what_was_spent_is_over_with_its_window():
    spent = drafts.Spent()
    spent.add(0.0, 100)
    spent.add(30.0, 10)

    assert spent.within(59.0) == 110
    assert spent.within(60.0) == 10
    assert spent.within(90.0) == 0


async def test_19_a_draft_for_what_is_not_ones_own_computes_nothing_and_says_nothing(
    site, somebody
):
    other_id, _ = site.new_user()
    theirs = site.do(site.service.conversations.create(other_id)).id
    mine = await somebody.conversation()
    async with somebody.tab() as tab:
        for one in (theirs, ConversationId("conv_0")):
            await type_in(tab, one, "one two three")
        await tab.send(Presence(conversation_id=theirs, state=PresenceState.OPEN))
        await tab.subscribe(mine)
        await until(site, lambda: not site.service.supervisor.drafts._lines)

    assert not drafted(site)
    assert theirs not in {subject for subject, _ in wishes(site)}


# ---------------------------------------------------------------- presence


def wishes(site: Serving) -> list[tuple[str, object]]:
    def said(told: tuple[Subject, object]) -> tuple[str, object]:
        subject, wish = told
        return subject.subject_id, wish

    return [said(told) for told in engine_of(site).leases]


def latest(site: Serving, conversation_id: ConversationId) -> object:
    """What was wished for it last; those of an earlier test may still be let go."""
    return next((wish for one, wish in reversed(wishes(site)) if one == conversation_id), None)


LIVE = Hold(retention=RetentionClass.LIVE, ttl_s=liveness.TTL_S)
HIDDEN = Hold(retention=RetentionClass.RECENT, ttl_s=liveness.TTL_S)
WRITES = Hold(retention=RetentionClass.LIVE, ttl_s=liveness.TTL_S, imminent=True)
GONE = Hold(retention=RetentionClass.RECENT, ttl_s=liveness.RETURN_S)


async def test_what_is_looked_at_is_live_and_brought_back_and_what_is_hidden_is_not(site, somebody):
    conversation_id = await somebody.conversation()

    def told() -> list[object]:
        return [wish for subject, wish in wishes(site) if subject == conversation_id]

    def told_is(expected: Sequence[object]) -> bool:
        return told() == list(expected)

    async with somebody.tab() as tab:
        await tab.subscribe(conversation_id)
        await until(site, lambda: told() == [LIVE, Warm()])
        for state, expected in (
            (PresenceState.HIDDEN, [HIDDEN]),
            (PresenceState.TYPING, [WRITES, Warm()]),
        ):
            engine_of(site).leases.clear()
            await tab.send(Presence(conversation_id=conversation_id, state=state))
            await until(site, functools.partial(told_is, expected))
        engine_of(site).leases.clear()
    await until(site, lambda: told() == [GONE])


async def test_the_most_alive_of_several_tabs_counts(site, somebody):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as one:
        await one.subscribe(conversation_id)
        await one.send(Presence(conversation_id=conversation_id, state=PresenceState.HIDDEN))
        await until(site, lambda: (conversation_id, HIDDEN) in wishes(site))
        async with somebody.tab() as two:
            await two.subscribe(conversation_id)
            await until(site, lambda: latest(site, conversation_id) == Warm())
        await until(site, lambda: latest(site, conversation_id) == HIDDEN)


async def test_what_is_deleted_is_wished_for_no_more(site, somebody):
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await tab.subscribe(conversation_id)
        await somebody.client.delete(f"/api/conversations/{conversation_id}")
        await until(site, lambda: latest(site, conversation_id) == Forget())
        seen = site.service.supervisor.liveness._seen

        assert conversation_id not in {subject.subject_id for subject in seen}
