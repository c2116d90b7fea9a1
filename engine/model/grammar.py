"""Grammars: which tokens a reply may go on with, so that its text is what was asked for.

Owns the library's matcher and its limits. A matcher's state is a function of the ids that a job has
put out, so it may be let go at any time: a job that was preempted, or comes from a lost engine, has
its ids replayed. The library is imported with the first grammar, and a step without one does nothing
here. It refuses to know how a token is chosen among those that are allowed.

    Grammars    any thread     schema -> Compiled, remembered
    Followers   the thread that computes: a matcher for each job that runs, one mask a draw
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from engine.api import Grammar, JobId
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

        text = LLMatcher.grammar_from_json_schema(
            _schema(grammar),
            overrides={
                # A model that may write white space between tokens of JSON writes it for ever.
                "whitespace_flexible": False,
                "item_separator": ", ",
                "key_separator": ": ",
                "lenient": not grammar.strict,
            },
        )
        matcher = LLMatcher(self._tokens(), text, log_level=0, limits=_limits())
        if matcher.is_error():
            raise InvalidGrammar(_words(matcher))
        _allowed(matcher.deep_copy(), (), self._loaded.vocabulary_tokens)
        return matcher

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


def _schema(grammar: Grammar) -> str:
    """The schema without what only this library would take for an instruction."""
    if len(grammar.schema) > SCHEMA_CHARACTERS:
        raise InvalidGrammar(
            f"the schema has {len(grammar.schema):,} characters; at most {SCHEMA_CHARACTERS:,} are read"
        )
    try:
        schema = json.loads(grammar.schema)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidGrammar("a schema is a JSON object")
    return json.dumps({key: value for key, value in schema.items() if key != "x-guidance"})


def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits  # noqa: PLC0415

    return LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)


def _words(matcher: "LLMatcher") -> str:
    return " ".join(matcher.get_error().split())
