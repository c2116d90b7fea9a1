"""The oldest whole turns leave a prompt that cannot fit, and the cut is kept."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.shortening import what_is_kept
from app.db.base import Database
from app.errors import PromptTooLong
from app.events import ResponseView
from app.people.accounts import Principal
from engine.api import Limits, Message, RenderRequest, Role, Seam
from tests.kit.domain import Domain, new_person, open_domain, said
from tests.kit.echo import CARD, END, EchoEngine

ROLES = {"s": Role.SYSTEM, "u": Role.USER, "a": Role.ASSISTANT}
LONG = 300
"""Characters, and so tokens, of each message: six of them fit."""


def roles(spoken: str) -> list[Role]:
    return [ROLES[one] for one in spoken]


# ---------------------------------------------------------------- where to cut


@pytest.mark.parametrize(
    ("spoken", "over", "kept"),
    [
        ("uauau", 1, (0, 2)),  # half of the room leaves
        ("uauauauauau", 60, (0, 4)),  # twice that
        ("uau", 60, (0, 2)),
        ("suauau", 1, (1, 3)),
        ("ssuuauau", 1, (2, 5)),  # what a turn consists of stays together
        ("uasuau", 1, (0, 2)),
        ("auau", 1, (0, 3)),
        ("u", 1, None),
        ("su", 1, None),
        ("uuu", 1, None),
        ("sua", 1, None),
    ],
)
def test_whole_turns_leave_and_the_beginning_stays(spoken: str, over: int, kept: object):
    assert what_is_kept(roles(spoken), [25] * len(spoken), over, room=100) == kept


turns = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=40)


@given(turns=turns, room=st.integers(100, 200))
def test_a_history_that_grows_is_cut_where_it_was_until_the_stride_is_full(turns, room: int):
    """So whoever sends it whole each time finds again what was computed."""
    cuts = []
    for count in range(2, len(turns) + 1):
        tokens = [tokens for turn in turns[:count] for tokens in turn]
        over = sum(tokens) - room
        if over > 0:
            kept = what_is_kept(roles("ua" * count), tokens, over, room)
            assert kept is not None
            assert roles("ua" * count)[kept.start] is Role.USER
            is_deep = kept.start < 2 * (count - 1)
            cuts.append((-(-over // (room // 2)), kept.start, is_deep))

    for (strides, start, is_deep), (further, later, _) in pairwise(cuts):
        assert later >= start
        if is_deep and strides == further:
            assert later == start


# ---------------------------------------------------------------- turns


async def turn(
    domain: Domain, who: Principal, letter: str, previous: ResponseView | None, **changes: object
) -> ResponseView:
    response = await domain.respond(who, letter * LONG, previous, shortenable=True, **changes)
    return (await domain.ended(who, response)).response


@pytest.mark.parametrize("store", [True, False])
async def test_the_oldest_turns_leave_and_the_later_ones_are_appended(db: Database, store: bool):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        end, ends = None, []
        for letter in "abcdefghijk":
            end = await turn(domain, ann, letter, end, store=store)
            ends.append(end)
        texts = [(await domain.supervisor.response(ann, one.id)).text for one in ends]

    starts = [job.token_ids for job in engine.jobs]
    cut = [
        place
        for place, (one, next_) in enumerate(pairwise(starts), start=1)
        if next_[: len(one)] != one
    ]
    assert cut == [6, 10], "and never between"
    for place in cut:
        job, before = engine.jobs[place], engine.jobs[place - 1]
        assert job.history is not None
        assert job.history.forked
        assert job.history.token_ids[: len(before.token_ids)] == before.token_ids
        assert job.session_id == before.session_id
    asked = chain(*(said(letter * LONG) for letter in "ef"))
    told = (Message(role=Role.ASSISTANT, text=text) for text in texts[4:6])
    request = RenderRequest(
        messages=(*chain(*zip(asked, told, strict=True)), *said("g" * LONG)),
        seam=Seam.START,
        opens_reply=True,
    )
    assert starts[6] == (await engine.render(request)).token_ids


async def test_what_left_stays_stored_and_is_not_said_to_be_new(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        end, before = None, []
        for letter in "abcdef":
            end = await turn(domain, ann, letter, end)
        assert end is not None
        before = await domain.nodes(end.message_id)
        cut = await turn(domain, ann, "g", end)
        items = await domain.supervisor.input_items(ann, cut.id)
        path = await domain.nodes(cut.message_id)
        after = await domain.nodes(end.message_id)
        other = await turn(domain, ann, "h", await _first(domain, ann, end))

    assert after == before
    assert [item.text for item in items] == ["g" * LONG]
    assert len(path) < len(before)
    assert [node.text[0] for node in path if node.role is Role.USER] == list("efg")
    assert other.conversation_id == cut.conversation_id


async def _first(domain: Domain, who: Principal, response: ResponseView) -> ResponseView:
    found = await domain.supervisor.response(who, response.id)
    while found.previous_response_id is not None:
        found = await domain.supervisor.response(who, found.previous_response_id)
    return found.view


async def test_a_reply_that_was_cut_does_not_leave_its_end_behind(db: Database):
    """The glue that closes it stands with the message behind it, and goes with the reply."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        end = None
        for letter in "abcdefg":
            response = await domain.respond(
                ann,
                letter * LONG,
                end,
                shortenable=True,
                limits=Limits(max_output_tokens=8),
            )
            end = (await domain.ended(ann, response)).response

    ids = engine.jobs[-1].token_ids
    assert ids[0] != END
    assert END not in ids[:3]


async def test_who_sends_everything_again_is_cut_where_they_were_cut(db: Database):
    engine = EchoEngine()
    sent: list[Message] = []
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        for letter in "abcdefghi":
            sent.append(Message(role=Role.USER, text=letter * LONG))
            response = await domain.respond(
                ann, "", store=False, messages=tuple(sent), shortenable=True
            )
            end = await domain.ended(ann, response)
            sent.append(Message(role=Role.ASSISTANT, text=end.text))

    first, second, third = (job.token_ids for job in engine.jobs[6:])
    assert len(first) < len(engine.jobs[5].token_ids)
    assert second[: len(first)] == first
    assert third[: len(second)] == second


async def test_what_cannot_fit_by_itself_is_refused_and_nothing_is_stored(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        end = await turn(domain, ann, "a", None)
        for previous in (end, None):
            with pytest.raises(PromptTooLong):
                await domain.respond(ann, "x" * CARD.context_tokens, previous, shortenable=True)
        with pytest.raises(PromptTooLong):
            await domain.respond(ann, "x" * (CARD.context_tokens - LONG), end)
        last = await domain.respond(ann, "x" * (CARD.context_tokens - LONG), end, shortenable=True)
        await domain.ended(ann, last)

    assert len(engine.jobs) == 2
