"""What counts as communication in a recording, by which rule, and which other kernels might.

A candidate is a compute kernel whose own name (without template arguments and parameters) holds a word of
communication. It is shown, never counted: `--comm-names` counts it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from makeway.decide.analysis.names import short_name
from makeway.values.timeline import CommRule, Span

MOST_NAMES = 8  # of one rule
MOST_CANDIDATES = 12
MOST_SUGGESTED = 3  # in the option to type

# Words that say communication by themselves, and words that also name other things.
_STRONG = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|a2a|send_?recv|cross_?device|nvshmem|rocshmem|nccl|rccl|"
    r"msccl|multimem|inter_?node|intra_?node|symm_?mem",
    re.IGNORECASE,
)
_WEAK = re.compile(r"dispatch|combine|barrier|(?<![a-z])ipc|p2p|peer|notify|exchange", re.IGNORECASE)
# Kernels of one GPU whose names hold such a word: libraries of tensors, scans and softmax.
_LOCAL = re.compile(
    r"at::native|cub::|thrust::|rocprim|cunn_|SoftMax|splitkv|split_kv|gather_layout|dispatch_layout|layer_?norm|"
    r"index_|scatter_gather|topk",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_:]{2,79}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedNames:
    """Kernels and copies that one rule calls communication."""

    rule: CommRule | None  # None: nothing says why
    names: tuple[str, ...]  # short, most time first
    kernels: int
    time_ns: int  # the sum over kernels and ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A kernel that counts as compute, though its name speaks of communication."""

    name: str
    kernels: int
    time_ns: int
    likely: bool  # the word in its name has no other meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What was matched by which rule, the candidates that no rule claims, and how many ranks the job has."""

    matched: tuple[MatchedNames, ...] = ()
    unclaimed: tuple[Candidate, ...] = ()
    world: int | None = None  # ranks of the job, where the recording says so

    @property
    def missing(self) -> bool:
        """Whether a job of several ranks shows no communication at all."""
        return not self.matched and (self.world or 1) > 1

    @property
    def suggested(self) -> tuple[Candidate, ...]:
        """The likeliest candidates whose names can be typed; names in traces are hostile."""
        return tuple(item for item in self.unclaimed if _PLAIN.fullmatch(item.name))[:MOST_SUGGESTED]

    @property
    def suggestion(self) -> str | None:
        """The option that counts the suggested candidates."""
        names = [item.name for item in self.suggested]
        return f"--comm-names '{'|'.join(names)}'" if names else None

    @property
    def missing_note(self) -> str | None:
        """What a reader must know before any figure, where communication is missing."""
        if not self.missing:
            return None
        likely = ", ".join(f"{item.name} ({item.time_ns / 1e6:,.3f} ms)" for item in self.suggested)
        hint = (
            f"likeliest: {likely}; to count them, add {self.suggestion}"
            if self.suggestion
            else "no kernel's name suggests it; name your own with --comm-names"
        )
        return f"the job has {self.world:,} ranks, but no kernel here is known to communicate; {hint}"


NO_COMMUNICATION = Communication()

_Counts = tuple[Counter[str], Counter[str]]  # kernels and time by name


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """One rank's part: kernels and time by rule and name, small enough to send."""

    matched: tuple[tuple[CommRule | None, str, int, int], ...] = ()
    unclaimed: tuple[tuple[str, int, int], ...] = ()
    world: int | None = None


def rank_evidence(spans: Iterable[Span], *, world: int | None = None) -> RankEvidence:
    """Why each of a rank's comm spans counts, and which compute kernels might be communication."""
    matched: dict[tuple[CommRule | None, str], list[int]] = defaultdict(lambda: [0, 0])
    others: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for span in spans:
        if span.kind in ("comm", "copy"):
            entry = matched[span.rule, span.name]
        elif span.kind == "compute":
            entry = others[span.name]
        else:
            continue
        entry[0] += 1
        entry[1] += span.duration_ns
    return RankEvidence(
        matched=tuple((rule, name, count, time) for (rule, name), (count, time) in matched.items()),
        unclaimed=tuple((name, count, time) for name, (count, time) in others.items() if _strength(name)),
        world=world,
    )


def communication(ranks: Sequence[RankEvidence]) -> Communication:
    """The evidence of all ranks together."""
    rules: dict[CommRule | None, _Counts] = defaultdict(lambda: (Counter(), Counter()))
    candidates: _Counts = (Counter(), Counter())
    for rank in ranks:
        for rule, name, count, time in rank.matched:
            _count(rules[rule], name, count, time)
        for name, count, time in rank.unclaimed:
            _count(candidates, name, count, time)
    matched = [
        MatchedNames(rule=rule, names=_longest(times), kernels=kernels.total(), time_ns=times.total())
        for rule, (kernels, times) in rules.items()
    ]
    worlds = [rank.world for rank in ranks if rank.world]
    return Communication(
        matched=tuple(sorted(matched, key=lambda item: -item.time_ns)),
        unclaimed=_candidates(*candidates),
        world=max([*worlds, len(ranks)]) if worlds or len(ranks) > 1 else None,
    )


def _count(counts: _Counts, name: str, kernels: int, time_ns: int) -> None:
    counts[0][name] += kernels
    counts[1][name] += time_ns


def _longest(times: Counter[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(short_name(name) for name, _ in times.most_common(4 * MOST_NAMES)))[:MOST_NAMES]


def _candidates(kernels: Counter[str], times: Counter[str]) -> tuple[Candidate, ...]:
    """Candidates by short name: strong words first, then the most time."""
    by_name: dict[str, Candidate] = {}
    for name, count in kernels.items():
        short = short_name(name)
        known = by_name.get(short)
        by_name[short] = Candidate(
            name=short,
            kernels=count + (known.kernels if known else 0),
            time_ns=times[name] + (known.time_ns if known else 0),
            likely=_strength(name) > 1,
        )
    ordered = sorted(by_name.values(), key=lambda item: (not item.likely, -item.time_ns, item.name))
    return tuple(ordered[:MOST_CANDIDATES])


@lru_cache(maxsize=8192)
def _strength(name: str) -> int:
    """2: the name says communication; 1: it may; 0: it does not."""
    short = short_name(name)
    if _LOCAL.search(short):
        return 0
    return 2 if _STRONG.search(short) else 1 if _WEAK.search(short) else 0
