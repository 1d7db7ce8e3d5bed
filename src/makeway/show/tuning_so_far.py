"""A job that is being tuned as a report: what is in force, step times by set of controls, what was tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from makeway.act.launch.tuning_so_far import SettingTime, TuningSoFar
from makeway.show.blocks import Bar, Bars, Headline, Part, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import count, percent, time_text
from makeway.show.run_tuning import control_set
from makeway.show.run_tuning import report as tuning_report


def report(result: TuningSoFar, *, arguments: str = "") -> Report:
    """The report of the tuned job up to now; its controls have no receipts before the end."""
    whole = tuning_report(result.tuning, arguments=arguments)
    kept = tuple(_awaiting(section) for section in whole.sections if section.name not in ("controls", "provenance"))
    return replace(
        whole,
        result="tuning-so-far",
        over="makeway run --tune, running" if result.running else "makeway run --tune, ended",
        headline=_headline(result),
        sections=(Section(name="times", title="Step time", blocks=(_bars(result),)), *kept),
        data={key: value for key, value in whole.data.items() if key != "verdict"} | _data(result),
    )


def _awaiting(section: Section) -> Section:
    """The section with words for a job that goes on in place of those for one that has ended."""
    blocks = tuple(
        replace(block, nothing="No decision yet.") if isinstance(block, Table) and block.name == "decisions" else block
        for block in section.blocks
    )
    return replace(section, blocks=blocks)


def _headline(result: TuningSoFar) -> Headline:
    tuning = result.tuning
    if not tuning.steps:
        return Headline(sentence="The job runs; no step is measured yet", origin="measured")
    change = "" if tuning.difference_pct is None else f", {percent(tuning.difference_pct, '+.1f')} when adopted"
    now = next((time for time in result.times if time.in_force), None)
    pace = f"; a step takes {time_text(now.median_ns)}" if now is not None else ""
    state = f"Step {tuning.steps:,}" if result.running else f"Ended after {count(tuning.steps, 'step')}"
    in_force = control_set(tuning.plan)
    sentence = f"{state}: {in_force}{' is in force' if tuning.plan else ''}{change}{pace}"
    return Headline(sentence=sentence, origin="measured", value=tuning.difference_pct, unit="%")


def _bars(result: TuningSoFar) -> Bars:
    return Bars(
        name="step-times",
        caption="Median step time of each set of controls; compare pairs below: the job changes while it runs",
        origin="measured",
        bars=tuple(_bar(time) for time in result.times),
    )


def _bar(time: SettingTime) -> Bar:
    return Bar(
        label=control_set(time.controls),
        parts=(Part("step", time.median_ns, "overlapped" if time.in_force else "compute"),),
        spread_ns=time.spread_ns,
        samples=time.samples,
        note=f"{count(time.steps, 'step')}{', in force' if time.in_force else ''}",
    )


def _data(result: TuningSoFar) -> dict[str, Any]:
    return {
        "running": result.running,
        "ranks": result.ranks,
        "times": [record(time) for time in result.times],
    }
