"""The page in a browser: lines that belong together light up, and texts of the user's stay texts."""

from __future__ import annotations

import json
import re

import pytest
from report import reading
from report.reading import CALL, SQUARE, STORE, browse, dump

pytestmark = pytest.mark.needs("chromium", "cpu")
# What a test does in the page; `report` leaves its findings where `found` reads them.
HELPERS = """
const lineOf = (pane, number) => state.panes[pane].lines.find((line) => line.dataset.n === String(number));
const fire = (target, kind, more) => {
  const type = kind.startsWith("key") ? KeyboardEvent : MouseEvent;
  target.dispatchEvent(new type(kind, { bubbles: true, ...more }));
};
const texts = (pane) => [...pane.querySelectorAll(".line.lit")].map((line) => line.textContent);
const lit = () => [...document.querySelectorAll(".pane")].map(texts);
const report = (value) => document.body.append(make("i", { id: "found" }, JSON.stringify(value)));
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    done = dump(folder, "--arch", "cpu")
    assert done.returncode == 0, done.stderr
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def found(made, tmp_path):
    """Runs a program in a copy of the page; what it reports, and the document that it leaves."""

    def run(program: str):
        path = tmp_path / "copy.html"
        path.write_text(made.replace("</body>", f"<script>{HELPERS}{program}</script></body>"), encoding="utf-8")
        dom = browse(path, tmp_path / "profile")
        text = re.search(r'<i id="found">(.*?)</i>', dom, re.S)
        assert text, dom[-2000:]
        return json.loads(text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")), dom

    return run


def test_hovering_lights_lines_of_the_same_python_in_all_panes(found):
    (before, (python, llvm), after, pinned), _ = found(
        f"""
        const before = lit();
        fire(lineOf(0, {SQUARE}), "mouseover");
        const during = lit();
        fire(state.panes[0].pre, "mouseleave");
        report([before, during, lit(), state.pinned]);
        """
    )
    assert before == after == [[], []]
    assert python == ["    return v * v"]
    assert len(llvm) == 2 and "fmul" in llvm[1]
    assert pinned == -1


def test_hovering_another_stage_lights_the_python(found):
    (python, assembly), _ = found(
        """
        state.panes[1].title = "assembly";
        state.panes[1].show(data.kernels[0]);
        const stage = state.panes[1].stage;
        const k = stage.lines.findIndex((line, k) => stage.places[k] >= 0 && line.includes("mul"));
        fire(state.panes[1].lines[k], "mouseover");
        report(lit());
        """
    )
    assert python == ["    return v * v"]
    assert assembly and all("mul" in line for line in assembly)


def test_a_click_pins_and_escape_unpins(found):
    (pinned, moved, hash_, free), _ = found(
        f"""
        fire(lineOf(0, {STORE}), "click");
        const pinned = lit()[0];
        fire(lineOf(0, {CALL}), "mouseover");
        const moved = lit()[0];
        fire(state.panes[0].pre, "mouseleave");
        const hash = location.hash;
        fire(document.body, "keydown", {{ key: "Escape" }});
        report([pinned, moved, hash, lit()[0]]);
        """
    )
    assert [line.strip()[:17] for line in pinned] == ["field_of_x[i] = t"]
    assert [line.strip() for line in moved] == ["t = square(a[i] + offset)"]
    assert re.fullmatch(r"#kernel=0&pin=\d+", hash_)
    assert free == []


def test_keys_move_through_lines_and_pin_them(found):
    (lines, pinned), _ = found(
        """
        const pre = state.panes[0].pre;
        pre.focus();
        const lines = [];
        for (let k = 0; k < 6; k++) { fire(pre, "keydown", { key: "ArrowDown" }); lines.push(lit()[0][0] ?? ""); }
        fire(pre, "keydown", { key: "Enter" });
        report([lines, state.pinned >= 0]);
        """
    )
    assert lines[2:5] == [reading.SCRIPT.splitlines()[n - 1] for n in (reading.DEF, reading.LOOP, CALL)]
    assert pinned


def test_the_filter_and_the_choice_of_a_kernel(found):
    (shown, signature), _ = found(
        """
        byId("filter").value = "CPU count";
        byId("filter").dispatchEvent(new Event("input"));
        const shown = [...byId("kernels").children].map((item) => !item.hidden);
        byId("kernels").children[1].querySelector("button").click();
        report([shown, byId("about").querySelector("code").textContent]);
        """
    )
    assert shown == [False, True, False]
    assert signature == "count(n: i32)"


def test_scrolls_to_the_first_line(found):
    (top, first, height), _ = found(
        f"""
        state.panes[1].title = "assembly";
        state.panes[1].show(data.kernels[0]);
        state.panes[1].pre.scrollTop = 0;
        fire(lineOf(0, {SQUARE}), "mouseover");
        const pane = state.panes[1];
        report([pane.pre.scrollTop, pane.litLines[0] * LINE_HEIGHT, pane.pre.clientHeight]);
        """
    )
    assert top <= first < top + height
    assert first > height  # else there was nothing to scroll


def test_texts_stay_texts(found):
    (title, intruders, store), dom = found(
        f"""
        const coloured = () => document.querySelector(".k") !== null;  // lines are, when the browser is idle
        const tell = () => report([document.title, document.querySelectorAll("b, #broken").length, lineOf(0, {STORE}).textContent]);
        const wait = () => coloured() ? tell() : setTimeout(wait, 10);
        wait();
        """
    )
    assert title == reading.NAME
    assert intruders == 0
    assert store == reading.SCRIPT.splitlines()[STORE - 1]
    assert 'class="k"' in dom
    assert "<b" not in dom.replace("<body", "").replace("<button", "")
