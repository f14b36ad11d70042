"""Scripted solvers of MiniWoB++ tasks, for demonstrations: each looks at the page and names the next action."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lit_agentrl.envs.calls import Call
from lit_agentrl.envs.miniwob_page import Item, Reading

Solver: TypeAlias = Callable[[Reading], Call]


def solve(page: str, reading: Reading) -> Call:
    """Return the next action on a page that has a solver.

    Raises:
        LookupError: The page is not as the solver expects.
    """
    return SOLVERS[page](reading)


def _click(item: Item) -> Call:
    return "click", {"id": item.id}


def _of_kind(reading: Reading, *kinds: str) -> list[Item]:
    return [item for item in reading.items if item.kind in kinds]


def _named(items: Sequence[Item], name: str) -> Item:
    for item in items:
        if item.name == name:
            return item
    raise LookupError(f"nothing is named {name!r}")


def _submit(reading: Reading) -> Call:
    return _click(_of_kind(reading, "button")[-1])


def _quoted(reading: Reading) -> list[str]:
    return re.findall(r'"([^"]*)"', reading.query)


def _group(reading: Reading, pattern: str) -> str:
    found = re.search(pattern, reading.query)
    if found is None:
        raise LookupError(f"the task is worded in another way: {reading.query!r}")
    return found.group(1)


def _fill(reading: Reading, texts: Sequence[str]) -> Call:
    """Type texts into the fields in order, then press the last button."""
    fields = _of_kind(reading, "field", "password field", "text area")
    for field, text in zip(fields, texts, strict=False):
        if field.name != text:
            return "type", {"id": field.id, "text": text}
    return _submit(reading)


def _click_first_button(reading: Reading) -> Call:
    return _click(_of_kind(reading, "button")[0])


def _click_quoted_button(reading: Reading) -> Call:
    return _click(_named(_of_kind(reading, "button"), _quoted(reading)[0]))


def _click_dialog(reading: Reading) -> Call:
    (name,) = _quoted(reading)
    return _click(_named(_of_kind(reading, "button"), "Close" if name == "x" else name))


def _click_quoted_text(reading: Reading) -> Call:
    return _click(_named(_of_kind(reading, "text"), _quoted(reading)[0]))


def _click_button_one(reading: Reading) -> Call:
    return _click(_named(_of_kind(reading, "button"), "ONE"))


def _click_button_sequence(reading: Reading) -> Call:
    # The first click leaves the focus on its button, and nothing else on the page tells that it was made.
    first = _named(_of_kind(reading, "button"), "ONE")
    return _click(_named(_of_kind(reading, "button"), "TWO") if "focused" in first.state else first)


def _click_tab(reading: Reading) -> Call:
    return _click(_named(_of_kind(reading, "link"), _group(reading, r"Click on (Tab #\d+)")))


def _click_option(reading: Reading) -> Call:
    wanted = _named(_of_kind(reading, "radio button"), _group(reading, r"^Select (.*) and click Submit"))
    return _submit(reading) if wanted.state.startswith("checked") else _click(wanted)


def _click_checkboxes(reading: Reading) -> Call:
    wanted = _group(reading, r"^Select (.*) and click Submit").split(", ")
    for item in _of_kind(reading, "checkbox"):
        if item.name in wanted and item.state.startswith("not checked"):
            return _click(item)
    return _submit(reading)


def _choose_list(reading: Reading) -> Call:
    option, (items, *_) = _group(reading, r"^Select (.*) from the list"), _of_kind(reading, "list")
    return _submit(reading) if items.name == option else ("select", {"id": items.id, "option": option})


def _focus_text(reading: Reading) -> Call:
    return _click(_of_kind(reading, "field")[0])


def _focus_text_2(reading: Reading) -> Call:
    return _click(_of_kind(reading, "field")[int(_group(reading, r"the (\d)\w\w input")) - 1])


def _enter_quoted(reading: Reading) -> Call:
    return _fill(reading, _quoted(reading))


def _enter_password(reading: Reading) -> Call:
    return _fill(reading, _quoted(reading) * 2)


def _enter_changed_text(reading: Reading) -> Call:
    (text,) = _quoted(reading)
    return _fill(reading, [text.upper() if "upper case" in reading.query else text.lower()])


def _enter_date(reading: Reading) -> Call:
    (field,) = _of_kind(reading, "date field")
    month, day, year = _group(reading, r"Enter (\S+) as the date").split("/")
    # A date field is typed as shown and holds the date as ISO 8601.
    typed, held = f"{month}{day}{year}", f"{year}-{month}-{day}"
    return _submit(reading) if field.name == held else ("type", {"id": field.id, "text": typed})


def _read_table(reading: Reading) -> Call:
    label = _group(reading, r"value of (.*) into the text field")
    cells = _of_kind(reading, "text")
    return _fill(reading, [cells[cells.index(_named(cells, label)) + 1].name])


SOLVERS: dict[str, Solver] = {
    "choose-list": _choose_list,
    "click-button": _click_quoted_button,
    "click-button-sequence": _click_button_sequence,
    "click-checkboxes": _click_checkboxes,
    "click-checkboxes-transfer": _click_checkboxes,
    "click-dialog": _click_dialog,
    "click-dialog-2": _click_dialog,
    "click-link": _click_quoted_text,
    "click-option": _click_option,
    "click-tab": _click_tab,
    "click-test": _click_first_button,
    "click-test-2": _click_button_one,
    "click-test-transfer": _click_button_one,
    "enter-date": _enter_date,
    "enter-password": _enter_password,
    "enter-text": _enter_quoted,
    "enter-text-2": _enter_changed_text,
    "enter-text-dynamic": _enter_quoted,
    "focus-text": _focus_text,
    "focus-text-2": _focus_text_2,
    "login-user": _enter_quoted,
    "read-table": _read_table,
    "unicode-test": _click_quoted_button,
}
"""By page. Every solver sees the page only, as a policy does, and may need several actions."""
