"""Frames: what is sent arrives equal, and any bytes are accepted or refused as `Corrupt`."""

import contextlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import errors, wire
from engine.api import (
    CacheSource,
    Delta,
    Finished,
    FinishReason,
    Forget,
    History,
    Hold,
    Job,
    JobId,
    Limits,
    Message,
    OwnerId,
    Refusal,
    Rendered,
    RenderRequest,
    RetentionClass,
    Role,
    Sampling,
    Scope,
    Seam,
    Subject,
    SubjectKind,
    TokenLogprob,
    TokenLogprobs,
    Zone,
)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.lists(st.integers(0, 1 << 20), max_size=20).map(tuple)
floats = st.floats(allow_nan=False, width=32)


def a_job(**changes: object) -> Job:
    job = Job(
        job_id=JobId("job"),
        owner_id=OwnerId("ann"),
        token_ids=(1, 2, 3),
        zones=(Zone(scope=Scope("ann"), source=CacheSource.SESSION, end=3),),
        sampling=Sampling(temperature=0.7, seed=11, logprobs=3),
        limits=Limits(max_output_tokens=9, stop=("\n", "é")),
        history=History(
            token_ids=(1,), model_fingerprint="m", template_fingerprint="t", boot_id="b"
        ),
    )
    return msgspec.structs.replace(job, **changes)


@st.composite
def calls(draw) -> wire.Call:
    subject = Subject(
        kind=draw(st.sampled_from(SubjectKind)), subject_id="s", owner_id=OwnerId("o")
    )
    message = Message(role=draw(st.sampled_from(Role)), text=draw(words))
    request = RenderRequest(
        messages=(message,), seam=draw(st.sampled_from(Seam)), opens_reply=draw(st.booleans())
    )
    wish = draw(st.sampled_from([Hold(retention=RetentionClass.LIVE, ttl_s=2.5), Forget()]))
    body = draw(
        st.sampled_from(
            [
                wire.Render(request=request),
                wire.Generate(job=a_job(token_ids=draw(ids), resumed_output=draw(ids))),
                wire.Cancel(job_id=JobId(draw(words))),
                wire.Lease(subject=subject, wish=wish),
                wire.ReadStats(),
                wire.ReadSnapshot(),
                wire.Watch(after=draw(st.integers(0, 1 << 40))),
                wire.Drop(),
                wire.Close(),
            ]
        )
    )
    return wire.Call(request_id=draw(st.integers(0, 1 << 40)), body=body)


@st.composite
def notes(draw) -> wire.Note:
    chosen = TokenLogprob(token_id=5, token=draw(words), logprob=draw(floats))
    delta = Delta(
        job_id=JobId("job"),
        token_ids=draw(ids),
        text=draw(words),
        logprobs=(TokenLogprobs(chosen=chosen, top=(chosen,)),),
    )
    finished = Finished(
        job_id=JobId("job"),
        reason=draw(st.sampled_from(FinishReason)),
        token_ids=draw(ids),
        text=draw(words),
        seam=Seam.CUT,
    )
    rendered = wire.RenderReply(
        rendered=Rendered(token_ids=draw(ids), ends=draw(ids), opening_end=0)
    )
    failed = wire.FailedReply(failure=Refusal(code="overloaded", message=draw(words)))
    bodies = st.sampled_from([delta, finished, rendered, failed, wire.ClosedReply()])
    replies = st.builds(wire.Reply, request_id=st.integers(0, 1 << 40), body=bodies)
    return draw(
        st.one_of(
            st.builds(wire.Progress, text=words),
            st.builds(wire.Replies, replies=st.lists(replies, max_size=4).map(tuple)),
        )
    )


@given(calls())
def test_every_call_arrives_as_it_was_sent(call):
    assert wire.unpack_call(wire.pack(call)) == call


@given(notes())
def test_every_note_arrives_as_it_was_sent(note):
    assert wire.unpack_note(wire.pack(note)) == note


@given(st.binary(max_size=200))
@example(b"")
@example(bytes([wire.VERSION]))
@example(bytes([wire.VERSION]) + b"\x91" * 5000)
@example(bytes([wire.VERSION]) + b"\xa2\xff\xff")
def test_any_bytes_are_read_or_refused_as_corrupt(noise):
    for unpack in (wire.unpack_call, wire.unpack_note):
        for frame in (noise, bytes([wire.VERSION]) + noise):
            _read_or_refuse(unpack, frame)


@given(calls(), st.data())
def test_a_frame_with_a_changed_byte_is_read_or_refused_as_corrupt(call, data):
    frame = bytearray(wire.pack(call))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))

    _read_or_refuse(wire.unpack_call, bytes(frame))


@given(calls(), st.data())
def test_a_frame_cut_short_is_refused(call, data):
    frame = wire.pack(call)
    end = data.draw(st.integers(0, len(frame) - 1))

    with pytest.raises(errors.Corrupt):
        wire.unpack_call(frame[:end])


def test_a_frame_of_another_version_is_refused_naming_both():
    frame = bytes([wire.VERSION + 1]) + wire.pack(wire.Progress(text="hello"))[1:]

    with pytest.raises(errors.Corrupt, match=r"version 03, not 02"):
        wire.unpack_note(frame)


@pytest.mark.parametrize(
    "job", [a_job(sampling=Sampling(seed=1 << 80)), a_job(owner_id=OwnerId("\ud800"))]
)
def test_what_no_frame_can_hold_is_an_invalid_job(job):
    with pytest.raises(errors.InvalidJob):
        wire.pack(wire.Call(request_id=1, body=wire.Generate(job=job)))


@pytest.mark.parametrize(
    "error",
    [
        errors.PromptTooLong("too long", needed_tokens=9, limit_tokens=8),
        errors.Overloaded("full", retry_after_s=1.5),
        errors.InvalidJob("empty", field="token_ids"),
        errors.InvalidGrammar("not a schema"),
        errors.Refused("no", field="messages"),
        errors.EngineLost("gone"),
        errors.EngineClosed("closed"),
        errors.Corrupt("books"),
        errors.Misconfigured("model"),
    ],
)
def test_an_error_keeps_its_type_its_words_and_its_numbers(error):
    arrived = wire.error_of(wire.failure_of(error))

    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def _read_or_refuse(unpack, frame):
    with contextlib.suppress(errors.Corrupt):
        unpack(frame)
