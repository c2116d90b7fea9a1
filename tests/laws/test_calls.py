"""Laws 2, 3 and 6 where answers call functions: real model, real database, a template that has calls."""

from pathlib import Path

import pytest

from app.chat.asked import Choice, Tools
from app.chat.calls import calls_of, written
from app.chat.headed import shared_tokens
from app.chat.library import DEFAULT_PERSONA
from engine.api import CallForm, Function, Limits, Message, RenderRequest, Role, Seam
from tests.kit.domain import new_person
from tests.kit.engines import a_job, play
from tests.kit.templates import CALLS
from tests.laws.test_template import prompt_of, receipt_of, served

WEATHER = Function(
    name="weather",
    description="Tells the weather of a city.",
    parameters='{"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},'
    ' "required": ["city"], "additionalProperties": false}',
)
TIDE = Function(name="tide")
SHORT = Limits(max_output_tokens=60)


def tools(form: CallForm | None, choice: Choice, *functions: Function) -> Tools:
    assert form is not None
    return Tools(functions=functions or (WEATHER,), form=form, choice=choice, parallel=False)


@pytest.mark.row("engine 3")
async def test_02_a_call_its_output_and_the_answer_compute_only_what_is_new(tmp_path: Path):
    async with served(tmp_path, CALLS) as (engine, domain):
        form = (await engine.info()).template.calls
        ann = await new_person(domain.db)
        previous = None
        before: tuple[int, ...] = ()
        results: tuple[str, ...] = ()
        said: tuple[Message, ...] = (Message(role=Role.USER, text="Is it cold in Oslo?"),)
        for choice in (Choice.REQUIRED, Choice.REQUIRED, Choice.AUTO):
            wanted = tools(form, choice)
            response = await domain.respond(
                ann, "", previous, messages=said, tools=wanted, results=results, limits=SHORT
            )
            end = await domain.ended(ann, response)
            ids, path = await prompt_of(domain, end)
            receipt = receipt_of(end)
            assert receipt.cached_tokens >= len(before) - 1
            assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens
            assert ids[: len(before)] == before
            if choice is Choice.REQUIRED:
                (call,) = written(end.text, wanted.form).calls
                assert (call.name, call.is_whole) == ("weather", True)
            cold = await play(
                engine,
                a_job(
                    ids[: receipt.prompt_tokens],
                    owner=f"nobody {len(ids)}",
                    limits=SHORT,
                    grammar=wanted.grammar(ann.user_id),
                ),
            )
            assert cold.receipt.cached_tokens == 0
            assert cold.token_ids == ids[receipt.prompt_tokens :], "warm is cold"
            previous, before = response, ids
            results = tuple(calls_of(path[-1].id, end.text, wanted.form))
            said = (Message(role=Role.TOOL, text="Minus four degrees."),)


async def test_03_the_prompt_of_a_loop_is_what_the_template_writes_of_it(tmp_path: Path):
    async with served(tmp_path, CALLS) as (engine, domain):
        form = (await engine.info()).template.calls
        ann = await new_person(domain.db)
        wanted = tools(form, Choice.REQUIRED)
        first = await domain.respond(ann, "Is it cold in Oslo?", tools=wanted, limits=SHORT)
        end = await domain.ended(ann, first)
        given = Message(role=Role.TOOL, text="Minus four degrees.")
        second = await domain.respond(
            ann,
            "",
            first,
            messages=(given,),
            results=tuple(calls_of(first.message_id, end.text, wanted.form)),
            tools=wanted,
            limits=Limits(max_output_tokens=1),
        )
        told = receipt_of(await domain.ended(ann, second))
        ids, path = await prompt_of(domain, await domain.ended(ann, second))
        said = tuple(Message(role=node.role, text=node.text) for node in path[:-1])
        request = RenderRequest(
            messages=said, seam=Seam.START, opens_reply=True, tools=wanted.functions
        )
        whole = (await engine.render(request)).token_ids

    assert ids[: told.prompt_tokens] == whole


async def test_11_under_a_persona_with_functions_only_its_words_are_shared(tmp_path: Path):
    """And the prompt is what the template writes of all of it (law 3)."""
    async with served(tmp_path, CALLS) as (engine, domain):
        form = (await engine.info()).template.calls
        wanted = tools(form, Choice.NONE)
        ends = []
        for _ in range(2):
            who = await new_person(domain.db)
            previous = None
            for text in ("Is it cold in Oslo?", "And in Rome?"):
                previous = await domain.respond(
                    who,
                    text,
                    previous,
                    persona_id=DEFAULT_PERSONA.id,
                    tools=wanted,
                    limits=Limits(max_output_tokens=4),
                )
                ends.append(await domain.ended(who, previous))
        ids, path = await prompt_of(domain, ends[-1])
        alone = RenderRequest(messages=DEFAULT_PERSONA.messages, seam=Seam.START, opens_reply=False)
        words = (await engine.render(alone)).token_ids
        asked = Message(role=Role.USER, text=path[0].text)
        request = RenderRequest(
            messages=(*DEFAULT_PERSONA.messages, asked),
            seam=Seam.START,
            opens_reply=True,
            tools=wanted.functions,
        )
        whole = (await engine.render(request)).token_ids

    first, again, other, _ = (receipt_of(end) for end in ends)
    assert ids[: len(whole)] == whole
    assert first.cached_tokens == 0
    assert again.cached_tokens >= first.prompt_tokens + first.output_tokens - 1
    shared = shared_tokens(words, ids)
    assert other.cached_tokens == other.cached_by_source.persona == shared
    assert len(words) - shared < 4, "all of its words, but for the end of their message"


async def test_02_other_functions_change_the_head_and_nothing_else(tmp_path: Path):
    async with served(tmp_path, CALLS) as (engine, domain):
        form = (await engine.info()).template.calls
        ann = await new_person(domain.db)
        ends = []
        previous = None
        for functions in ((WEATHER,), (WEATHER, TIDE), (WEATHER,)):
            previous = await domain.respond(
                ann,
                "Is it cold in Oslo?",
                previous,
                tools=tools(form, Choice.NONE, *functions),
                limits=Limits(max_output_tokens=4),
            )
            ends.append(await domain.ended(ann, previous))
        paths = [await prompt_of(domain, end) for end in ends]

    bodies = [
        ids[len(next(n.head_token_ids for n in reversed(path) if n.head_token_ids)) :]
        for ids, path in paths
    ]
    assert bodies[1][: len(bodies[0])] == bodies[0]
    assert bodies[2][: len(bodies[1])] == bodies[1]
    assert receipt_of(ends[2]).cached_tokens >= receipt_of(ends[0]).prompt_tokens - 1
