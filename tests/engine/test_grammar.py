"""Structured output: what a grammar allows is all that is drawn, and its state is the output's ids."""

import ast
import asyncio
import contextlib
import dataclasses
import json
import socket
import time
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import pytest_asyncio
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.api import (
    FinishReason,
    Grammar,
    JobClass,
    JobId,
    JsonGrammar,
    Limits,
    Message,
    OwnerId,
    RenderRequest,
    Role,
    Sampling,
    Seam,
)
from engine.errors import InvalidGrammar
from engine.model.grammar import SCHEMA_CHARACTERS, Followers, Grammars
from engine.model.sample import draw_tokens
from engine.step import BlockId, Draw, Run
from tests.kit.engines import GREEDY, Outcome, a_config, a_job, first_prompt, open_local, play
from tests.kit.model import loaded_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
ANN = OwnerId("ann")
LONG = Limits(max_output_tokens=120)


def grammar(schema: Any, *, strict: bool = True) -> Grammar:
    return JsonGrammar(owner_id=ANN, schema=json.dumps(schema), strict=strict)


@pytest.fixture(scope="module")
def loaded():
    return loaded_model()


@pytest.fixture(scope="module")
def grammars(loaded):
    return Grammars(loaded)


def run_of(wanted: Grammar, output: list[int], **draw: Any) -> Run:
    order = Draw(
        **{"sampling": Sampling(), "seed": 0, **draw},
        prompt_ids=(1,),
        output_ids=output,
        grammar=wanted,
    )
    return Run(job_id=JobId("job"), token_ids=[1], start=0, block_table=[BlockId(0)], draw=order)


# ---------------------------------------------------------------- what is a grammar


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "bogus"}, "bogus"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "object", "properties": [1]}, "properties"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "minimum"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "a-format"}, "a-format"),
        ({"$ref": "#/$defs/a", "$defs": {}}, "a"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
        ([], "object"),
        ({"description": "x" * SCHEMA_CHARACTERS}, "characters"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_with_the_words_of_its_fault(
    grammars, schema, words
):
    with pytest.raises(InvalidGrammar, match=words):
        grammars.compile(grammar(schema))


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000])
def test_what_is_not_json_is_no_schema(grammars, text):
    with pytest.raises(InvalidGrammar):
        grammars.compile(JsonGrammar(owner_id=ANN, schema=text))


def test_where_it_is_not_strict_what_cannot_be_held_to_is_passed_over(grammars):
    grammars.compile(grammar({"type": "array", "uniqueItems": True}, strict=False))

    with pytest.raises(InvalidGrammar):
        grammars.compile(grammar({"type": "bogus"}, strict=False))


@pytest.mark.parametrize("strict", [True, False])
def test_nothing_is_fetched_for_a_schema(grammars, strict):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        with pytest.raises(InvalidGrammar, match="retrieving it failed"):
            grammars.compile(grammar({"$ref": url}, strict=strict))

        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "string", "pattern": "((a{1,99}){1,99}){1,99}b"},
        {"type": "string", "pattern": "(.*a.{40}){9}"},
        {"enum": [f"{'x' * 20}{n}" for n in range(4000)]},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}},
        {"anyOf": [{"type": "string", "pattern": f"[a-z]*{n}[a-z]*"} for n in range(500)]},
    ],
    ids=["endless", "repeats", "gaps", "words", "properties", "patterns"],
)
def test_a_monstrous_schema_is_followed_or_refused_in_bounded_time(grammars, loaded, schema):
    started = time.process_time()

    with contextlib.suppress(InvalidGrammar):
        grammars.compile(grammar(schema))
        followers = Followers(grammars, loaded.vocabulary_tokens)
        followers.masks([run_of(grammar(schema), [])])

    assert time.process_time() - started < 10


def test_equal_grammars_are_compiled_once(grammars):
    assert grammars.compile(grammar(PERSON)) is grammars.compile(grammar(PERSON))


def test_11_whether_another_user_has_sent_a_schema_cannot_be_told_by_how_soon_it_is_ready(grammars):
    mine = grammar(PERSON)
    grammars.compile(mine)

    assert grammars.known(mine) is not None
    assert grammars.known(msgspec.structs.replace(mine, owner_id=OwnerId("bob"))) is None


def test_no_module_imports_the_library_before_there_is_a_grammar():
    root = Path(__file__).parents[2]
    importing = [
        path
        for folder in ("engine", "app")
        for path in (root / folder).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom) and "llguidance" in ast.unparse(node)
    ]

    assert importing == []


# ---------------------------------------------------------------- what is drawn

_LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
        st.integers(-50, 50),
        st.integers(0, 500),
    ),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    st.just({"type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$", "maxLength": 9}),
    st.lists(st.text('abé"\\\n ', max_size=4), min_size=1, max_size=3, unique=True).map(
        lambda words: {"enum": words}
    ),
    st.integers(-9, 9).map(lambda value: {"const": value}),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.sampled_from(["a", "b", "ü", "long name", '"']), inner, max_size=3)
    return st.builds(
        lambda fields, optional: {
            "type": "object",
            "properties": fields,
            "required": [name for name in fields if name not in optional],
            "additionalProperties": False,
        },
        fields,
        st.sets(st.sampled_from(["a", "b"])),
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most},
        inner,
        st.integers(0, 2),
    )


SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=5,
)


def write(followers: Followers, loaded: Any, run: Run, most: int = 400) -> list[int]:
    """Draw with logits of noise until an end, or until the output is `most` ids long."""
    assert run.draw is not None
    draw, output = run.draw, list(run.draw.output_ids)
    noise = torch.Generator().manual_seed(draw.seed)
    while len(output) < most and not (output and output[-1] in loaded.eos_token_ids):
        at = run_of(draw.grammar, output, sampling=draw.sampling, seed=draw.seed)  # type: ignore[arg-type]
        masks = followers.masks([at])
        assert at.draw is not None
        logits = torch.randn(1, loaded.vocabulary_tokens, generator=noise) * 5
        (token,) = draw_tokens(logits, [at.draw], {0: masks[at.job_id]})  # type: ignore[dict-item]
        output.append(token.token_id)
    return output


@settings(max_examples=25, deadline=None)
@given(
    SCHEMAS,
    st.tuples(
        st.sampled_from(
            [
                GREEDY,
                Sampling(),
                Sampling(top_k=3),
                Sampling(top_p=0.3, min_p=0.1),
                Sampling(temperature=0, repetition_penalty=1.5, presence_penalty=2, logprobs=2),
            ]
        ),
        st.integers(0, 99),
    ),
)
def test_whatever_the_model_wants_its_answer_is_valid(loaded, grammars, schema, drawn):
    wanted, (sampling, seed) = grammar(schema), drawn
    followers = Followers(grammars, loaded.vocabulary_tokens)

    output = write(followers, loaded, run_of(wanted, [], sampling=sampling, seed=seed))

    assume(output[-1] in loaded.eos_token_ids)
    text = loaded.tokenizer.decode(output[:-1])
    jsonschema.validate(json.loads(text), schema)


@settings(max_examples=20, deadline=None)
@given(SCHEMAS, st.integers(0, 99))
def test_matchers_that_were_let_go_come_back_as_they_were(loaded, grammars, schema, seed):
    wanted = grammar(schema)
    first, kept, dropped = (Followers(grammars, loaded.vocabulary_tokens) for _ in range(3))
    output = write(first, loaded, run_of(wanted, [], seed=seed), most=20)[:-1]

    for end in range(len(output) + 1):
        run = run_of(wanted, output[:end])
        mine: Any = kept.masks([run])[run.job_id]
        theirs: Any = dropped.masks([run])[run.job_id]
        assert (mine == theirs).all()
        assert dropped.masks([]) == {}


def test_an_end_is_allowed_where_the_value_is_whole_and_banned_only_where_more_may_come(
    loaded, grammars
):
    wanted = grammar({"type": "integer", "minimum": 0, "maximum": 199})
    followers = Followers(grammars, loaded.vocabulary_tokens)
    one, two = (loaded.tokenizer.backend_tokenizer.encode(digit).ids for digit in "12")
    end = loaded.eos_token_ids

    def allowed(output: list[int], banned: tuple[int, ...] = ()) -> Any:
        followers.masks([])
        return followers.masks([run_of(wanted, output, banned_ids=banned)])[JobId("job")]

    assert not allowed([])[list(end)].any()
    assert allowed(one)[list(end)].all()
    assert not allowed(one, end)[list(end)].any()
    assert allowed([*one, *two, *two], end).nonzero()[0].tolist() == list(end)


def test_tokens_that_only_the_logits_have_are_never_allowed(loaded):
    wide = dataclasses.replace(loaded, vocabulary_tokens=loaded.vocabulary_tokens + 77)
    followers = Followers(Grammars(wide), wide.vocabulary_tokens)

    mask: Any = followers.masks([run_of(grammar({"type": "string"}), [])])[JobId("job")]

    assert len(mask) == wide.vocabulary_tokens
    assert mask.any()
    assert not mask[loaded.vocabulary_tokens :].any()


def test_logprobs_tell_what_the_model_thought_before_the_mask(loaded, grammars):
    logits = torch.zeros(1, loaded.vocabulary_tokens)
    logits[0, 7] = 9.0
    run = run_of(grammar({"const": 5}), [], sampling=Sampling(temperature=0, logprobs=1))
    mask: Any = Followers(grammars, loaded.vocabulary_tokens).masks([run])[JobId("job")]
    assert run.draw is not None

    (token,) = draw_tokens(logits, [run.draw], {0: mask})

    raw = logits[0].log_softmax(-1)
    assert mask[token.token_id]
    assert not mask[7]
    assert token.logprob == pytest.approx(float(raw[token.token_id]))
    assert token.top[0][0] == 7


# ---------------------------------------------------------------- on the engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    async with open_local() as engine:
        yield engine


async def asked(engine: Any, schema: Any = PERSON, **changes: Any) -> Any:
    prompt = await first_prompt(engine, "Describe Tom, who is 40 and has a cat.")
    return a_job(prompt, **{"grammar": grammar(schema), "limits": LONG, **changes})


def value_of(outcome: Outcome) -> Any:
    assert outcome.finished.reason is FinishReason.STOP, outcome.finished
    assert outcome.finished.seam is Seam.STOPPED
    return json.loads(outcome.text)


@pytest.mark.asyncio(loop_scope="module")
class TestEngine:
    @pytest.mark.parametrize(
        "sampling", [GREEDY, Sampling(temperature=1.5, seed=3)], ids=["greedy", "seeded"]
    )
    async def test_an_answer_is_what_its_schema_says(self, engine, sampling):
        jsonschema.validate(
            value_of(await play(engine, await asked(engine, sampling=sampling))), PERSON
        )

    async def test_jobs_with_and_without_a_grammar_run_beside_each_other(self, engine):
        plain = await asked(engine, grammar=None, limits=Limits(max_output_tokens=20))
        alone = await play(engine, plain)

        bound, free, other = await asyncio.gather(
            play(engine, await asked(engine)),
            play(engine, await asked(engine, grammar=None, limits=plain.limits)),
            play(engine, await asked(engine, {"type": "boolean"})),
        )

        assert free.token_ids == alone.token_ids
        jsonschema.validate(value_of(bound), PERSON)
        assert value_of(other) in (True, False)

    async def test_an_answer_that_runs_out_of_tokens_says_so(self, engine):
        outcome = await play(engine, await asked(engine, limits=Limits(max_output_tokens=5)))

        assert outcome.finished.reason is FinishReason.LENGTH

    @pytest.mark.parametrize(
        "limits",
        [
            Limits(max_output_tokens=60, ignore_eos=True),
            Limits(max_output_tokens=60, min_output_tokens=50),
        ],
        ids=["ignore_eos", "min_tokens"],
    )
    async def test_a_whole_value_ends_an_answer_that_was_to_be_longer(self, engine, limits):
        outcome = await play(engine, await asked(engine, {"const": "yes"}, limits=limits))

        assert value_of(outcome) == "yes"

    async def test_a_stop_string_ends_it_in_the_middle(self, engine):
        limits = Limits(max_output_tokens=60, stop=('"age"',))

        outcome = await play(engine, await asked(engine, limits=limits))

        assert outcome.finished.reason is FinishReason.STOP
        assert outcome.text.startswith('{"name": "')
        assert '"age"' not in outcome.text

    @pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.2, seed=5)])
    async def test_an_answer_is_taken_up_where_its_grammar_was(self, engine, sampling):
        job = await asked(engine, sampling=sampling)
        whole = await play(engine, job)

        for sent in (1, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
            resumed = whole.token_ids[:sent]
            rest = await play(
                engine, await asked(engine, sampling=sampling, resumed_output=resumed)
            )
            assert rest.token_ids == whole.token_ids

    async def test_an_answer_that_was_preempted_is_the_one_it_would_have_been(self, engine):
        undisturbed = await play(engine, await asked(engine, job_class=JobClass.DRAFT))

        async with open_local(a_config(max_running=1)) as narrow:
            weak = narrow.generate(await asked(narrow, job_class=JobClass.DRAFT))
            events = [await anext(weak), await anext(weak)]
            strong = await play(narrow, await asked(narrow, {"type": "boolean"}))
            events += [event async for event in weak]
            preemptions = (await narrow.stats()).preemptions

        assert Outcome(events=tuple(events)).token_ids == undisturbed.token_ids
        assert value_of(strong) in (True, False)
        assert preemptions > 0

    async def test_a_job_that_takes_over_an_ended_ones_id_begins_anew(self, engine):
        job = await asked(engine)

        first, second = await play(engine, job), await play(engine, job)

        assert second.token_ids == first.token_ids

    async def test_output_that_breaks_the_grammar_ends_its_job_and_no_other(self, engine):
        other = asyncio.create_task(play(engine, await asked(engine)))

        broken = await play(engine, await asked(engine, resumed_output=(5, 5)))

        assert broken.finished.reason is FinishReason.REFUSED
        assert broken.finished.refusal is not None
        assert broken.finished.refusal.code == "invalid_grammar"
        jsonschema.validate(value_of(await other), PERSON)

    async def test_a_bad_grammar_is_refused_before_its_job_and_before_its_text(self, engine):
        message = Message(role=Role.USER, text="Hi")
        outcome = await play(engine, await asked(engine, {"type": "bogus"}))

        assert outcome.finished.refusal is not None
        assert outcome.finished.refusal.field == "grammar"
        for messages in ((message,), ()):
            request = RenderRequest(
                messages=messages,
                seam=Seam.CLOSED,
                opens_reply=False,
                grammar=grammar({"type": "bogus"}),
            )
            with pytest.raises(InvalidGrammar, match="bogus"):
                await engine.render(request)


async def test_the_deterministic_mode_gives_the_same_answer_beside_others(tmp_path):
    async with open_local(a_config(deterministic=True, step_tokens=256)) as engine:
        alone = await play(engine, await asked(engine))
        jobs = [await asked(engine, owner_id=OwnerId(name)) for name in ("bo", "cy")]
        together = await asyncio.gather(*(play(engine, job) for job in jobs))

    assert [outcome.token_ids for outcome in together] == [alone.token_ids] * 2
    jsonschema.validate(value_of(alone), PERSON)
