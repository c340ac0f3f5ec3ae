"""Writes a call site as the ring's string table has it, and reads it.

As file, line, function, what the operation is for (a gradient bucket, an FSDP unit), the ids of the lines that
called that function, and the module in whose forward that was. The last three may be left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import CallSite, ModuleView
from ncclwatch.contract.ring import modules

SEPARATOR = "\x1f"
FILE_BYTES, FUNCTION_BYTES, LABEL_BYTES = 1000, 200, 300  # of the parts of a call site that is too long
CALLERS_MAX = 7  # of the user's own functions, outside the innermost
GRADIENT_BUCKET = "gradient bucket"  # how the label of an operation begins that reduces one


def is_gradient_bucket(label: str) -> bool:
    """Say whether an operation reduces a gradient bucket, by what it is labelled."""
    return label.startswith(GRADIENT_BUCKET)


class SiteText(NamedTuple):
    """A call site as it is written. Without a file it stands for a place in native code, and says only `label`."""

    file: str
    line: int
    function: str
    label: str = ""
    callers: tuple[int, ...] = ()  # string ids, innermost first
    module: ModuleView | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """The distinct ways by which operations were reached: the line, and the lines that called it, innermost first."""

    frames: tuple[tuple[CallSite, ...], ...] = ()
    # string id of a call site -> index into `frames`, plus one
    numbers: Mapping[int, int] = field(default_factory=dict)
    modules: tuple[ModuleView, ...] = ()  # the distinct modules that made operations, each with its mode
    # string id of a call site -> index into `modules`, plus one
    module_numbers: Mapping[int, int] = field(default_factory=dict)

    def module_of(self, site: int) -> int:
        """Return the number of the module in whose forward a call site lies, by its string id; 0 if in none."""
        return self.module_numbers.get(site, 0)

    def of(self, site: int) -> int:
        """Return the number of the way to a call site, given by its string id; 0 if no callers are known."""
        return self.numbers.get(site, 0)


def read_routes(strings: Iterable[tuple[int, str]], count: int) -> Routes:
    """Return the newest `count` of the ways in a table of strings, given as (id, text)."""
    texts = {number: site for number, text in strings if (site := parse(text)) is not None}
    ids: dict[tuple[CallSite, ...], list[int]] = {}
    for number, site in texts.items():
        callers = [texts[caller] for caller in site.callers if caller in texts]
        if callers:
            way = tuple(CallSite(file=each.file, line=each.line, function=each.function) for each in (site, *callers))
            ids.setdefault(way, []).append(number)  # one for each thing that its operations are for
    newest = list(ids)[-count:]
    inside = {number: site.module for number, site in texts.items() if site.module is not None}
    met = list(dict.fromkeys(inside.values()))[-count:]
    places = {module: at for at, module in enumerate(met, start=1)}
    return Routes(
        tuple(newest),
        {known: at for at, way in enumerate(newest, start=1) for known in ids[way]},
        tuple(met),
        {number: places[module] for number, module in inside.items() if module in places},
    )


def write(site: SiteText) -> str:
    """Return the text of a call site. One that is too long for the table of strings is cut in its parts."""
    text = _joined(site)
    if len(text.encode(errors="replace")) <= config.TEXT_CHARS_MAX:
        return text
    short = site._replace(
        file=_end(site.file, FILE_BYTES),
        function=_end(site.function, FUNCTION_BYTES),
        label=_end(site.label, LABEL_BYTES),
    )
    text = _joined(short)
    return text if len(text.encode(errors="replace")) <= config.TEXT_CHARS_MAX else _joined(short._replace(module=None))


def _end(text: str, bytes_max: int) -> str:
    """Return the end of a text that is too long: of a path or a name it tells most."""
    data = text.encode(errors="replace")
    return text if len(data) <= bytes_max else "…" + data[-bytes_max:].decode(errors="ignore")


def _joined(site: SiteText) -> str:
    parts = [site.file, str(site.line) if site.file else "", site.function]
    if site.label or site.callers or site.module:
        parts.append(site.label)
    if site.callers or site.module:
        parts.append(".".join(str(caller) for caller in site.callers))
    if site.module:
        parts.append(modules.write(site.module))
    return SEPARATOR.join(parts)


def parse(text: str) -> SiteText | None:
    """Return the call site that a text stands for, None if it is some other text."""
    parts = text.split(SEPARATOR)
    if not 3 <= len(parts) <= 6 or not (parts[1].isdigit() or parts[:2] == ["", ""]):
        return None
    module = modules.parse(parts[5]) if len(parts) == 6 else None
    if len(parts) == 6 and module is None:
        return None
    callers = parts[4].split(".") if len(parts) > 4 else []
    return SiteText(
        file=parts[0],
        line=int(parts[1] or 0),
        function=parts[2],
        label=parts[3] if len(parts) > 3 else "",
        callers=tuple(int(caller) for caller in callers if caller.isdigit())[:CALLERS_MAX],
        module=module,
    )
