"""Grammars: which tokens a reply may go on with, so that its text is what was asked for.

Owns the library's matcher and its limits. A matcher's state is a function of the ids that a job has
put out, so it may be let go at any time: a job that was preempted, or comes from a lost engine, has
its ids replayed. The library is imported with the first grammar, and a step without one does nothing
here. It refuses to know how a token is chosen among those that are allowed.

    Grammars    any thread     schema or calls -> Compiled, remembered
    Followers   the thread that computes: a matcher for each job that runs, one mask a draw
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from engine.api import CallGrammar, Function, Grammar, JobId, JsonGrammar
from engine.errors import InvalidGrammar
from engine.model.load import LoadedModel
from engine.step import Draw, Run

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SCHEMA_CHARACTERS = 128 * 1024
"""A schema of that size compiles in about a second; the largest that the dialect allows is smaller."""
REMEMBERED = 64
"""Compiled grammars that are kept while nobody uses them."""
LEXER_STATES = 50_000
"""Of one matcher, at 1 to 2 kB; a text of that many characters and a stated length takes as many."""

_SPELLING = {
    # A model that may write white space between tokens of JSON writes it for ever.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_TAG = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_TEXT = r"TEXT: /(.|\n)*/"
_TOO_HARD = "the grammar is too complex to be followed"

Allowed = NDArray[np.bool_]
"""[vocabulary], as wide as the logits."""


class Compiled:
    """A grammar as the library has it; each job follows a copy."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def matcher(self) -> "LLMatcher":
        return self._matcher.deep_copy()


class Grammars:
    """Compiles for one model's tokenizer. Whoever holds a `Compiled` keeps it findable."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._tokenizer: LLTokenizer | None = None
        self._held: WeakValueDictionary[Grammar, Compiled] = WeakValueDictionary()
        self._recent: OrderedDict[Grammar, Compiled] = OrderedDict()

    def known(self, grammar: Grammar) -> Compiled | None:
        """What was compiled before, where it is still here. From any thread."""
        return self._held.get(grammar)

    def compile(self, grammar: Grammar) -> Compiled:
        """Takes milliseconds, and for a large schema a second; one caller at a time.

        Raises `InvalidGrammar` in the library's words.
        """
        compiled = self.known(grammar) or Compiled(self._matcher(grammar))
        self._held[grammar] = self._recent[grammar] = compiled
        self._recent.move_to_end(grammar)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return compiled

    def _matcher(self, grammar: Grammar) -> "LLMatcher":
        """Checked up to its first mask: what compiles may still be endless or empty."""
        from llguidance import LLMatcher  # noqa: PLC0415

        if isinstance(grammar, JsonGrammar):
            schema = _schema(grammar.schema, strict=grammar.strict)
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        else:
            text = self._calls(grammar)
        matcher = LLMatcher(self._tokens(), text, log_level=0, limits=_limits())
        if matcher.is_error():
            raise InvalidGrammar(_words(matcher))
        _allowed(matcher.deep_copy(), (), self._loaded.vocabulary_tokens)
        return matcher

    def _calls(self, grammar: CallGrammar) -> str:
        """In the library's own language, where `TEXT` is what may be said before a call.

        Behind the tag that opens a call nothing but a call of a declared function can come.
        """
        form, tag = grammar.form, _tag(grammar.form.opening)
        is_one = self._is_one_token(tag)
        if not grammar.functions:
            anything = r"(.|\n)*"
            without = "" if is_one else f" & ~/{anything}{_escaped(tag)}{anything}/"
            return f"start: TEXT\n{_TEXT}{without}"
        opened = self._literal(form.opening)
        more = f"({self._literal(form.separator)} {opened} call)*" if grammar.several else ""
        if grammar.required:
            lines = [f"start: {opened} call {more}"]
        elif grammar.says is not None:
            schema = _schema(grammar.says.schema, strict=grammar.says.strict)
            lines = [f"start: said | {opened} call {more}", f"said: %json {json.dumps(schema)}"]
        else:
            rest = self._literal(form.opening[len(tag) :])
            said = f"said{'' if is_one else '[lazy]'}: TEXT {self._literal(tag)}"
            lines = [f"start: TEXT | said {rest} call {more}", said, _TEXT]
        places = range(len(grammar.functions))
        lines.append("call: " + " | ".join(f"call_{place}" for place in places))
        for place, function in zip(places, grammar.functions, strict=True):
            name, end = self._literal(function.name + form.middle), self._literal(form.closing)
            lines.append(f"call_{place}: {name} %json {json.dumps(_arguments(function))} {end}")
        text = "\n".join(lines)
        _check_size(text, "the grammar of the functions")
        return text

    def _literal(self, text: str) -> str:
        """A text as it must be written, where some of it may be single tokens by name."""
        parts = re.split(r"(<[^<>\s]+>)", text)
        return " ".join(
            part if self._is_one_token(part) else json.dumps(part) for part in parts if part
        )

    def _is_one_token(self, text: str) -> bool:
        """Whether the library has it for a token of its own, which stands in no text."""
        tokens = self._tokens()
        token_id = self._loaded.tokenizer.backend_tokenizer.token_to_id(text)
        return token_id is not None and tokens.is_special_token(token_id)

    def _tokens(self) -> "LLTokenizer":
        if self._tokenizer is None:
            from llguidance import LLTokenizer  # noqa: PLC0415

            loaded = self._loaded
            try:
                self._tokenizer = LLTokenizer(
                    loaded.tokenizer.backend_tokenizer.to_str(),
                    n_vocab=loaded.vocabulary_tokens,
                    eos_token=list(loaded.eos_token_ids),
                )
            except ValueError as error:
                words = f"this model's tokenizer follows no grammar: {error}"
                raise InvalidGrammar(words) from error
        return self._tokenizer


class Followers:
    """Matchers of the jobs that run in a step, kept for the next one."""

    def __init__(self, grammars: Grammars, vocabulary_tokens: int) -> None:
        self._grammars = grammars
        self._vocabulary_tokens = vocabulary_tokens
        self._followers: dict[JobId, _Follower] = {}

    def masks(self, runs: Iterable[Run]) -> dict[JobId, Allowed | InvalidGrammar]:
        """For each run that draws by a grammar what it may draw, or why it can draw nothing.

        Called once for all runs of a step: matchers of jobs that are not among them are let go.
        """
        drawing = [run for run in runs if run.draw is not None and run.draw.grammar is not None]
        if not drawing and not self._followers:
            return {}
        known, self._followers = self._followers, {}
        return {run.job_id: self._mask(run, known.get(run.job_id)) for run in drawing}

    def _mask(self, run: Run, known: "_Follower | None") -> Allowed | InvalidGrammar:
        draw = run.draw
        assert draw is not None
        try:
            follower = known if known and known.leads_to(draw) else self._new(draw)
            self._followers[run.job_id] = follower
            return _allowed(follower.at(draw), draw.banned_ids, self._vocabulary_tokens)
        except InvalidGrammar as error:
            return error

    def _new(self, draw: Draw) -> "_Follower":
        assert draw.grammar is not None
        compiled = self._grammars.known(draw.grammar) or self._grammars.compile(draw.grammar)
        return _Follower(draw.grammar, compiled.matcher())


class _Follower:
    """A matcher and the output that it has taken."""

    __slots__ = ("_grammar", "_matcher", "_output")

    def __init__(self, grammar: Grammar, matcher: "LLMatcher") -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._output: Sequence[int] = ()

    def leads_to(self, draw: Draw) -> bool:
        """Whether the draw's output goes on from here: another job may have had this one's id."""
        taken = len(self._output)
        return self._grammar == draw.grammar and (
            not taken or draw.output_ids[:taken] == self._output
        )

    def at(self, draw: Draw) -> "LLMatcher":
        """The matcher after all of the output. Raises `InvalidGrammar` where that breaks it."""
        new = list(draw.output_ids[len(self._output) :])
        if self._matcher.try_consume_tokens(new) != len(new):
            raise InvalidGrammar("the output so far is not what the grammar allows")
        self._output = draw.output_ids[:]
        return self._matcher


def _allowed(matcher: "LLMatcher", banned_ids: Sequence[int], vocabulary_tokens: int) -> Allowed:
    """What may come next. What is banned is allowed where it is all that can come: an end."""
    bits = np.zeros((vocabulary_tokens + 31) // 32, np.int32)
    try:
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
    except ValueError as error:
        raise InvalidGrammar(f"{_TOO_HARD}: {error}") from error
    if matcher.is_error():
        raise InvalidGrammar(f"{_TOO_HARD}: {_words(matcher)}")
    ones = np.unpackbits(bits.view(np.uint8), count=vocabulary_tokens, bitorder="little")
    allowed: Allowed = ones.view(np.bool_)
    if banned_ids:
        others = allowed.copy()
        others[list(banned_ids)] = False
        allowed = others if others.any() else allowed
    if not allowed.any():
        raise InvalidGrammar("nothing satisfies the grammar")
    return allowed


def _schema(text: str, *, strict: bool) -> dict[str, Any]:
    """The schema with our spelling, and without what only this library would take for an order."""
    _check_size(text, "the schema")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidGrammar("a schema is a JSON object")
    return {**schema, "x-guidance": {**_SPELLING, "lenient": not strict}}


def _arguments(function: Function) -> dict[str, Any]:
    """Arguments are an object, said or not. Faults name the function."""
    try:
        schema = _schema(function.parameters, strict=function.strict)
    except InvalidGrammar as error:
        raise InvalidGrammar(f"of the function {function.name!r} {error.message}") from error
    if schema.setdefault("type", "object") != "object":
        raise InvalidGrammar(f"the parameters of the function {function.name!r} are no object")
    return schema


def _tag(opening: str) -> str:
    """What of it says that it is a call: whoever has written that goes on with the call."""
    found = _TAG.match(opening)
    return found[0] if found else opening


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _check_size(text: str, what: str) -> None:
    if len(text) > SCHEMA_CHARACTERS:
        raise InvalidGrammar(
            f"{what} has {len(text):,} characters; at most {SCHEMA_CHARACTERS:,} are read"
        )


def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits  # noqa: PLC0415

    return LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)


def _words(matcher: "LLMatcher") -> str:
    return " ".join(matcher.get_error().split())
