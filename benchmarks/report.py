"""Tables, JSON and the chart of what was measured."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import statistics
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from contenders import BATCH, WINDOW
from epochs import KINDS
from waiting import POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from settings import Section

MEASURES: Final = ("samples_per_second", "bytes_read")


def summary(section: Section) -> dict[str, dict[str, Any]]:
    """Reduce each contender's counted epochs to medians, and their ratio to the best `.npz` loader's.

    A launch of many epochs has no more weight than others: medians are taken of each, then of all. Peaks of
    memory are the most over all epochs in which it was looked at.
    """
    assert section.setting is not None
    found: dict[str, dict[str, Any]] = {}
    for each in section.setting.contenders:
        counted = section.counted(each.name)
        line: dict[str, Any] = {"killed": section.kills.get(each.name, [])}
        if counted:
            rates = [epoch["samples_per_second"] for epoch in counted]
            line |= {measure: _median(counted, measure) for measure in MEASURES}
            line |= {"least": min(rates), "most": max(rates)}
        looks = [epoch["memory"] for epoch in section.epochs[each.name] if "memory" in epoch]
        line |= {kind: max(look[kind] for look in looks) for kind in KINDS if looks}
        if each.name in section.failures:
            line["failed"] = section.failures[each.name]
        for told in ("lacking", "repeated"):
            if any(epoch.get(told) for epoch in counted):
                line[told] = max(epoch[told] for epoch in counted)
        if any("cut" in epoch for epoch in counted):
            line["cut"] = min(epoch["count"] for epoch in counted if "cut" in epoch)
        found[each.name] = line
    base = baseline(section, found)
    for line in found.values():
        if base and "samples_per_second" in line:
            line["ratio"] = line["samples_per_second"] / found[base]["samples_per_second"]
    return found


def _median(epochs: Sequence[dict[str, Any]], measure: str) -> float:
    """Return the median of the medians of each round."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for epoch in epochs:
        rounds[epoch["round"]].append(epoch[measure])
    return statistics.median(map(statistics.median, rounds.values()))


def baseline(section: Section, lines: dict[str, dict[str, Any]]) -> str | None:
    """Name the fastest `.npz` loader; None if none has a rate."""
    assert section.setting is not None
    rates = {
        each.name: lines[each.name]["samples_per_second"]
        for each in section.setting.contenders
        if each.is_baseline and "samples_per_second" in lines[each.name]
    }
    return max(rates, key=rates.__getitem__, default=None)


def table(section: Section, *, tells_samples: bool = False) -> str:
    """Render a section as Markdown: a heading, what one has to know, and a table.

    With `tells_samples`, a column more says of each loader whether every sample came once.
    """
    if section.setting is None:
        return f"### {section.name}\n\nSkipped: {section.skipped}."
    lines = summary(section)
    base = baseline(section, lines)
    heads = "samples/s", "x best .npz", "least to most", "read, MB", *(f"{kind}, MB" for kind in KINDS)
    rows = [f"| loader | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    if tells_samples:
        rows = [f"{rows[0]} samples |", f"{rows[1]} --- |"]
    for name, line in lines.items():
        killed = f"killed ({len(line['killed'])} times)" if line["killed"] else ""
        rate = f"{line['samples_per_second']:,.0f}" if "samples_per_second" in line else ""
        cells = [
            name,
            ", ".join(filter(None, (rate, killed))),
            f"{line['ratio']:.1f}" if "ratio" in line else "",
            f"{line['least']:,.0f} to {line['most']:,.0f}" if rate else "",
            f"{line['bytes_read'] / 1e6:,.0f}" if rate else "",
            *(f"{line[kind] / 1e6:,.0f}" if kind in line else "" for kind in KINDS),
        ]
        if tells_samples:
            cells.append(_samples_cell(line))
        rows.append(f"| {' | '.join(cells)} |")
    notes = [f"Best .npz: {base.removeprefix('.npz, ')}." if base else "No .npz loader came through."]
    notes += [f"Left out: {name}, since {reason}." for name, reason in section.setting.left_out.items()]
    notes += [f"{name} failed: {what}" for name, what in section.failures.items()]
    notes += _drop_note(section) + _limit_note(section)
    return "\n".join([f"### {section.name}", "", f"{section.setting.says}.", "", *rows, "", *notes])


def _samples_cell(line: dict[str, Any]) -> str:
    """Say in a few words what came of the samples."""
    if "failed" in line:
        return "failed"
    told = [f"{line['lacking']:,} dropped"] if "lacking" in line else []
    told += [f"{line['repeated']:,} repeated"] if "repeated" in line else []
    told += [f"cut short after {line['cut']:,}"] if "cut" in line else []
    return ", ".join(told) or ("each once" if "samples_per_second" in line else "")


def _drop_note(section: Section) -> list[str]:
    """Say how well the page cache was dropped."""
    drops = section.drops()
    if not drops:
        return []
    wrong = sorted({drop.name for drop in drops if not drop.is_verified})
    verified = f"Drop NOT verified for {'; '.join(wrong)}" if wrong else "Drop verified"
    left = max(drop.left for drop in drops)
    shares = [drop.read for drop in drops]
    told = (
        f"{verified}: at most {left:.2%} of a loader's files was cached right after it, and the epoch that "
        f"followed read {min(shares):.0%} to {max(shares):.0%} of their bytes from the disk."
    )
    return [told]


def _limit_note(section: Section) -> list[str]:
    """Say for how long the loaders came through under the limit."""
    if section.setting is None or section.setting.limit is None:
        return []
    notes = []
    present = {each.name for each in section.setting.contenders}
    for name in (WINDOW, BATCH):
        if name not in present:
            continue
        most = max((epoch["epoch"] + 1 for epoch in section.epochs[name]), default=0)
        kills = len(section.kills.get(name, []))
        notes.append(f"{name}: {most} epochs in one process, killed {kills} times.")
    return notes


def machine() -> dict[str, Any]:
    """Say where this ran, and with what."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.MULTILINE)
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "waiting": os.environ.get(POLICY, "active"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "zarr", "numcodecs", "mmapload")},
    }


def as_json(section: Section) -> dict[str, Any]:
    """Give all of a section: what it was, medians, and every epoch."""
    setting = section.setting
    if setting is None:
        return {"skipped": section.skipped}
    lines = summary(section)
    return {
        "says": setting.says,
        "memory": setting.room.memory,
        "window": setting.room.window,
        "limit": setting.limit,
        "page_cache": "dropped before each process" if setting.drops else "warm",
        "first_counted_epoch": setting.counted_from,
        "baseline": baseline(section, lines),
        "left_out": setting.left_out,
        "drops": [dataclasses.asdict(drop) for drop in section.drops()],
        "loaders": {
            each.name: {
                "workers": each.workers,
                "file_bytes": each.nbytes,
                **lines[each.name],
                "epochs": section.epochs[each.name],
            }
            for each in setting.contenders
        },
    }


def draw(sections: Sequence[Section], title: str, target: Path) -> None:
    """Draw the medians as bars, a panel a section, with least and most; needs the `bench` extra."""
    from matplotlib.figure import Figure

    drawn = [section for section in sections if section.setting is not None]
    heights = [0.3 * len(section.setting.contenders) + 0.8 for section in drawn if section.setting]
    figure = Figure(figsize=(10, sum(heights) + 0.6), layout="constrained")
    panels = figure.subplots(len(drawn), squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, section in zip(panels, drawn, strict=True):
        lines = summary(section)
        peers = {each.name for each in section.setting.contenders if each.is_peer} if section.setting else ()
        for place, (name, line) in enumerate(lines.items()):
            median = line.get("samples_per_second", 0)
            error = [[median - line["least"]], [line["most"] - median]] if median else None
            colour = "tab:gray" if name.startswith(".npz") else "tab:orange" if name in peers else "tab:blue"
            axes.barh(place, median, xerr=error, color=colour, capsize=3)
            told = f"{line['ratio']:.1f} x" if "ratio" in line else ""
            told += " killed" if line["killed"] else ""
            axes.text(line.get("most", 0), place, f"  {told.strip()}", va="center", fontsize="small")
        axes.set_yticks(range(len(lines)), list(lines), fontsize="small")
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_title(section.name, loc="left", fontsize="medium")
    panels[-1].set_xlabel("samples a second: median, least and most; and the ratio to the best .npz loader")
    figure.suptitle(title, fontsize="medium")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
