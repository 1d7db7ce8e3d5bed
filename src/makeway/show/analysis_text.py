"""What analysis found, for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from makeway.decide.analysis.causes import CauseGroup, cause_groups
from makeway.decide.analysis.findings import Advice, Findings
from makeway.decide.planning.what_if import WhatIf
from makeway.values.control import describe


def print_analysis(out: Console, result: Findings, answers: WhatIf | None, no_answers: str | None) -> None:
    """One headline, the ranks, the causes that matter, the advice, and what the simulator says of it."""
    out.print(headline(result), markup=False)
    out.print()
    out.print(_rank_table(result))
    _print_waiting(out, result)
    _print_occupancy(out, result)
    groups = [group for group in cause_groups(result.causes) if group.rank_ns >= 0.002 * _span_ns(result)]
    if groups:
        out.print()
        out.print(_cause_table(groups[:6]))
    if result.advice:
        out.print()
        out.print(_advice_table(result.advice[:5]))
    _print_what_if(out, answers, no_answers)


def headline(result: Findings) -> str:
    """The one number that matters."""
    worst = max(result.ranks, key=lambda rank: rank.figures.exposed_ns)
    figures = worst.figures
    if not figures.comm_ns:
        return f"No communication in {len(result.ranks)} rank(s): {figures.span_ns / 1e6:,.1f} ms recorded (imported)."
    share = figures.exposed_percent or 0.0
    words = (
        f"{figures.exposed_ns / 1e6:,.1f} ms of communication is exposed on rank {worst.rank}: "
        f"{share:.0f} % of the recorded {figures.span_ns / 1e6:,.1f} ms (imported)"
    )
    waiting = dict(result.matching.waiting_ns).get(worst.rank)
    if waiting and waiting > 0.1 * figures.comm_ns:
        words += f"; {waiting / 1e6:,.1f} ms of its communication is waiting for other ranks"
        if result.matching.straggler_rank is not None:
            words += f", mostly for rank {result.matching.straggler_rank}"
    return words + "."


def _span_ns(result: Findings) -> int:
    return max(rank.figures.span_ns for rank in result.ranks)


def _rank_table(result: Findings) -> Table:
    waiting = dict(result.matching.waiting_ns)
    table = Table("rank", "device", box=None, pad_edge=False)
    for title in (
        "kernels",
        "comm",
        "compute ms",
        "comm ms",
        "overlap ms",
        "overlap %",
        "exposed ms",
        "idle ms",
        "span ms",
    ):
        table.add_column(title, justify="right")
    if waiting:
        table.add_column("waiting ms", justify="right")
    for rank in result.ranks:
        figures = rank.figures
        share = "-" if figures.overlap_percent is None else f"{figures.overlap_percent:.1f}"
        cells = [str(rank.rank), rank.device or "?", f"{figures.kernels:,}", f"{figures.comm_kernels:,}"]
        cells += [f"{time / 1e6:,.2f}" for time in (figures.compute_ns, figures.comm_ns, figures.overlap_ns)]
        cells += [share]
        cells += [f"{time / 1e6:,.2f}" for time in (figures.exposed_ns, figures.idle_ns, figures.span_ns)]
        if waiting:
            cells.append(f"{waiting.get(rank.rank, 0) / 1e6:,.2f}")
        table.add_row(*cells)
    return table


def _print_waiting(out: Console, result: Findings) -> None:
    matching = result.matching
    if not matching.matched:
        return
    ranks = len(result.ranks)
    transfer = f"{matching.transfer_ns / 1e6:,.1f} ms transfer"
    words = f"{len(matching.matched):,} collectives matched over {ranks} ranks: {transfer}"
    if matching.straggler_rank is not None:
        words += f"; {matching.straggler_share:.0%} of all waiting is for rank {matching.straggler_rank}"
    out.print(words, markup=False)


def _print_occupancy(out: Console, result: Findings) -> None:
    known = [rank.occupancy for rank in result.ranks if rank.occupancy is not None and rank.occupancy.kernels]
    if not known:
        return
    kernels, wrong = sum(item.kernels for item in known), sum(item.kineto_wrong for item in known)
    words = f"occupancy is makeway's own: Kineto's field is wrong for {wrong:,} of {kernels:,} kernels"
    if wrong:
        out.print(words + " (0 % above 48 KB of shared memory)", markup=False)


def _cause_table(groups: list[CauseGroup]) -> Table:
    table = Table("cause", "time", box=None, pad_edge=False, title="causes (most on one rank)", title_justify="left")
    table.add_column("ms", justify="right")
    table.add_column("sure")
    table.add_column("evidence of the longest", overflow="fold")
    for group in groups:
        table.add_row(group.kind, group.of, f"{group.rank_ns / 1e6:,.2f}", group.confidence, _plain(group.evidence))
    return table


def _advice_table(items: tuple[Advice, ...]) -> Table:
    table = Table("advice", box=None, pad_edge=False, title="what to change", title_justify="left")
    table.add_column("at most ms", justify="right")
    table.add_column("predicted gain ms", justify="right")
    for item in items:
        gain = "-" if item.predicted_gain_ns is None else f"{item.predicted_gain_ns / 1e6:,.2f}"
        words = item.title
        if item.controls and gain != "-" and describe(item.controls[0]) != item.title:
            words += f": {describe(item.controls[0])}"
        table.add_row(_plain(words), f"{item.bound_ns / 1e6:,.2f}", gain)
    return table


def _plain(text: str) -> str:
    """Without brackets that rich would read as mark-up."""
    return text.replace("[", r"\[")


def _print_what_if(out: Console, answers: WhatIf | None, no_answers: str | None) -> None:
    out.print()
    if answers is None:
        out.print(f"what-if: {(no_answers or '').partition(chr(10))[0]}", markup=False)
        return
    replay = answers.replay
    words = (
        f"what-if on rank {answers.rank}: the simulator replays the recorded {replay.recorded_ns / 1e6:,.1f} ms "
        f"as {replay.predicted_ns / 1e6:,.1f} ms ({replay.error:+.1%})"
    )
    if not replay.trusted:
        out.print(words + ": too far off to predict changes", markup=False)
        return
    gains = [item for item in answers.outcomes if (item.gain_ns or 0.0) >= replay.worth_ns]
    if gains:
        best = ", ".join(f"{describe(item.control)} saves {(item.gain_ns or 0.0) / 1e6:.2f} ms" for item in gains[:3])
        out.print(f"{words}; predicted: {best}", markup=False)
    else:
        least = f"{replay.worth_ns / 1e6:.2f} ms"
        out.print(f"{words}; no control is predicted to save more than the {least} it may be off by", markup=False)
