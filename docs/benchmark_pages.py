"""What the pages of the benchmarks and the CSV beside them say: the tables, and what of them a picture shows."""

import csv
import hashlib
import io
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Record = dict[str, str]  # a line of a CSV or of a table, by the heads of its columns

OURS, COPY, BYTES = "mpsfunc", "copy", {"float32": 4, "float16": 2, "bfloat16": 2}


class Page(NamedTuple):
    """A page beside its CSV."""

    title: str
    alt: str  # what stands for the picture
    facts: Record  # the machine and its software
    command: str  # what wrote the page
    tables: dict[str, list[Record]]  # by their headings
    records: list[Record]  # of the CSV
    digest: str  # of all this but the alternative text


class Point(NamedTuple):
    """A median, its interval, and the target that it has; what was said of that is "met", "missed" or nothing."""

    dtype: str
    median: float
    low: float
    high: float
    target: float | None = None
    verdict: str = ""


class Row(NamedTuple):
    """An operation on images of one shape: points for each panel, a dtype each."""

    op: str
    title: str
    shape: str
    points: dict[str, list[Point]]


class Bar(NamedTuple):
    """A side of a block: a value with what it ranged over, and words beside it."""

    side: str
    value: float
    low: float
    high: float
    words: Sequence[str]
    verdict: str = ""
    target: float | None = None


class Block(NamedTuple):
    """What all sides did, and a line of words below."""

    title: str
    bars: list[Bar]
    notes: list[tuple[str, str]]  # with what was said of each


# Pages


def read(file: Path) -> Page:
    """The page of a CSV, whose name differs in the suffix alone."""
    text = file.with_suffix(".md").read_text(encoding="utf-8")
    data = file.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    title = text.partition("\n")[0].removeprefix("# ")
    if file.parent.name in ("normalization", "pointwise", "convolution", "batch_norm"):
        title += f": {file.parent.name.replace(chr(95), chr(32))}"
    found = re.search(r"Written by\s+`([^`]+)`", text)
    command = " ".join(found[1].split()) if found else ""
    alt = re.search(rf"!\[([^\]]*)\]\({file.stem}\.svg\)", text)
    tables = dict(_table(part) for part in re.split(r"^## ", text, flags=re.MULTILINE))
    facts = {line["machine"]: line[""] for line in tables.pop(f"# {text.partition(chr(10))[0][2:]}")}
    digest = hashlib.sha256("\n".join([title, command, *lines, data]).encode()).hexdigest()
    return Page(title, alt[1] if alt else "", facts, command, tables, list(csv.DictReader(io.StringIO(data))), digest)


def _table(part: str) -> tuple[str, list[Record]]:
    """The heading of a part of a page, and its table."""
    cells = [[c.strip() for c in line[1:].split("|")[:-1]] for line in part.splitlines() if line.startswith("|")]
    head, body = (cells[0], cells[2:]) if cells else ([], [])
    names = [name if name not in head[:i] else f"{name}{i}" for i, name in enumerate(head)]
    return part.partition("\n")[0], [dict(zip(names, line, strict=True)) for line in body]


def verdict(line: Record) -> str:
    """What a line of a table of targets says: "met", "missed" or nothing."""
    said = {cell.strip("*") for cell in line.values()} & {"met", "missed"}
    return said.pop() if said else ""


# Speed of single operations


def panel_of(target: str) -> str:
    """Which panel shows a target such as "1 x PyTorch"."""
    return COPY if "copy" in target else "MLX" if " x MLX" in target else "PyTorch"


def number(target: str) -> float:
    """How much a target asks for: 0.7 of "70% of copy bandwidth"."""
    share = re.match(r"([\d.]+)%", target)
    return float(share[1]) / 100 if share else float(target.split()[0])


def rows(page: Page) -> list[Row]:
    """What a table of single operations holds, operations together."""
    together: dict[str, dict[tuple[str, str], Row]] = {}
    targets: dict[tuple[str, ...], dict[str, Record]] = {}
    for line in page.tables.get("Targets", []):
        known = line["operation"], line["dtype"], line["x"]
        targets.setdefault(known, {})[panel_of(line["at least"])] = line
    cases: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in page.records:
        rivals = cases.setdefault(tuple(value for name, value in record.items() if name in _CASE), {})
        rivals[record["rival"]] = record
    for line, rivals in zip(page.tables["Milliseconds a call"], cases.values(), strict=True):
        ours, known = rivals[OURS], (line["operation"], line["dtype"], line["x"])
        assert line["dtype"] == ours["dtype"], f"{page.title}: the page and the CSV have rows in different orders"
        of_op = together.setdefault(ours["op"], {})
        row = of_op.setdefault((line["operation"], line["x"]), Row(ours["op"], line["operation"], line["x"], {}))
        for panel in ("PyTorch", "MLX", COPY):
            point = _point(panel, rivals, targets.get(known, {}).get(panel))
            if point:
                row.points.setdefault(panel, []).append(point)
    return [row for of_op in together.values() for row in of_op.values()]


_CASE = frozenset("op n h w c dtype kernel_size stride padding edge_mode outs dilation groups exponent".split())
_AGAINST = {"PyTorch": ("PyTorch NCHW", "PyTorch NHWC"), "MLX": ("MLX", "MLX swapped"), COPY: (COPY,)}


def _point(panel: str, rivals: dict[str, Record], target: Record | None) -> Point | None:
    """Ours beside the fastest rival of a panel, or of those that the target names."""
    names = _AGAINST[panel]
    named = target["at least"].partition(" x ")[2] if target else ""
    if named not in ("", *_AGAINST):
        names = tuple(named.split(" or "))
    timed = [rivals[name] for name in names if name in rivals and rivals[name]["ms"]]
    if not timed:
        return None
    record, scale = min(timed, key=lambda record: float(record["ms"])), 1.0
    if panel == COPY:
        image = math.prod(int(record[side]) for side in "nhwc") * BYTES[record["dtype"]]
        scale = float(record["necessary_bytes"]) / (2 * image)
    median, low, high = (scale * float(record[name]) for name in ("ours_is_faster", "low", "high"))
    least, said = (number(target["at least"]), verdict(target)) if target else (None, "")
    return Point(record["dtype"], median, low, high, least, said)


# Blocks: whole networks, and memory


def networks(page: Page) -> list[Block]:
    """Milliseconds a step of every side, by network, batch and whatever else there is."""
    blocks = []
    for known in _groups(page.records, ("network", "batch", "dtype")):
        mine = [record for record in page.records if known.items() <= record.items()]
        targets = {line["against"]: line for line in page.tables.get("Targets", []) if _same(known, line)}
        bars = []
        for side in dict.fromkeys(record["side"] for record in mine):
            ms = [1e3 * float(record["seconds"]) for record in mine if record["side"] == side]
            ms = [value for value in ms if value == value]
            if not ms:
                continue
            median, line = statistics.median(ms), targets.get(side, {})
            words = _figure(median), " ".join((_short(line.get("measured (95 %)", "")), verdict(line)))
            bars.append(Bar(side, median, min(ms), max(ms), words, verdict(line)))
        notes = [(_memory_note(line), verdict(line)) for against, line in targets.items() if "memory" in against]
        title = ", ".join([known["network"], f"{known['batch']} images", *[known[k] for k in ("dtype",) if k in known]])
        blocks.append(Block(title, sorted(bars, key=lambda bar: bar.side != OURS), notes))
    return blocks


def matrix(page: Page) -> tuple[list[Row], dict[str, tuple[str, str]]]:
    """What the page of whole networks on a kind of processor has of each, and the panels with their heads."""
    found: dict[str, Row] = {}
    heads: dict[str, tuple[str, str]] = {}
    for line in page.tables["Networks"]:
        images = "one image" if line["batch"] == "1" else "batches"
        heads.setdefault(f"{line['mode']} {images}", (f"{line['mode']},", images))
        median, low, high = (float(value) for value in re.findall(r"[\d.]+", line["times as fast (95 %)"]))
        target = 1.0 if line["target"] == "1 x" else None
        point = Point(line["dtype"], median, low, high, target, verdict(line))
        row = found.setdefault(line["network"], Row(line["network"], line["network"], "", {}))
        row.points.setdefault(f"{line['mode']} {images}", []).append(point)
    for line in page.tables.get("Memory of a training", []):
        heads.setdefault("memory", ("memory,", "training"))
        mine = line.get(f"{OURS}, MB") or line["alive, MB"]
        ratio = float(line["PyTorch, MB"]) / max(float(mine), 1.0)
        point = Point(line["dtype"], ratio, ratio, ratio, None, verdict(line))
        found[line["network"]].points.setdefault("memory", []).append(point)
    return list(found.values()), heads


def memory(page: Page) -> list[Block]:
    """Megabytes beyond inputs and outputs, by operation."""
    blocks = []
    groups = _groups(page.records, ("op", "n", "h", "w", "c", "dtype"))
    for known, line in zip(groups, page.tables["Megabytes"], strict=True):
        limit = re.match(r"(\d+) MB, (met|missed)", line["limit"])
        bars = []
        for record in page.records:
            if known.items() <= record.items():
                value = float(record["beyond_bytes"]) / 1e6
                said = limit if record["rival"] == OURS else None
                words = f"{value:.1f}", *([f"limit {limit[1]}, {limit[2]}"] if said and limit else [])
                of_limit = (limit[2], float(limit[1])) if said and limit else ("", None)
                bars.append(Bar(record["rival"], value, value, value, words, *of_limit))
        blocks.append(Block(f"{line['operation']}, {line['x']}", bars, []))
    return blocks


def _groups(records: Iterable[Record], names: Sequence[str]) -> list[Record]:
    """What the records have in these columns, in their order."""
    groups: list[Record] = []
    for record in records:
        group = {name: record[name] for name in names if name in record}
        if group not in groups:
            groups.append(group)
    return groups


def _same(known: Record, line: Record) -> bool:
    return all(line.get(name, value) == value for name, value in known.items())


def _figure(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _short(words: str) -> str:
    """Ratios from 10 on with fewer digits than a table gives."""
    return re.sub(r"\d{2,}\.\d+", lambda found: _figure(float(found[0])), words)


def _memory_note(line: Record) -> str:
    """What "120 of 167 MB" against "PyTorch NHWC, memory" means."""
    (side, _, what), (ours, _, theirs) = line["against"].rpartition(", "), line["measured (95 %)"].partition(" of ")
    return f"{what}: {OURS} {ours} MB, {side} {theirs}" + f", {verdict(line)}" * bool(verdict(line))
