"use strict";
// Kernels, stages and places come from the document that is inside of the page. All of its texts are untrusted: they reach the page as
// text nodes and attributes only.
const data = JSON.parse(document.getElementById("report-data").textContent);
const LINE_HEIGHT = 19;
const CHUNK = 100;
const byId = (id) => document.getElementById(id);
const state = { kernel: 0, chosen: false, hovered: -1, pinned: -1, open: innerHeight > 850, panes: [] };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// --- colours ---------------------------------------------------------------------------------------------------------------

const STRING = String.raw`"(?:[^"\\]|\\.)*"`;
const NUMBER = String.raw`(?<![\w.])-?(?:0x[0-9A-Fa-f]\w*|\d+(?:\.\d*)?(?:e[+-]?\d+)?\w?)\b`;
const IR_TYPE = String.raw`\b(?:[iu](?:1|8|16|32|64)|f(?:16|32|64))\b`;
// Language -> [class, pattern] in order of precedence.
const WORDS = {
  python: [
    ["c", "#.*"],
    ["s", String.raw`${STRING}|'(?:[^'\\]|\\.)*'`],
    ["m", String.raw`@[\w.]+`],
    ["k", String.raw`\b(?:and|as|assert|break|class|continue|def|elif|else|False|for|from|if|import|in|is|lambda|None|not|or|pass|raise|return|True|while|with|yield)\b`],
    ["n", NUMBER],
  ],
  ir: [
    ["s", STRING],
    ["v", String.raw`%\w+`],
    ["k", String.raw`\b(?:kernel|arg|ref|return|for|if|while|yield|task|load|store|atomic|call|print|assert)\b`],
    ["t", IR_TYPE],
    ["n", NUMBER],
  ],
  spirv: [["c", ";.*"], ["s", STRING], ["k", String.raw`\bOp[A-Z]\w*`], ["v", String.raw`%\w+`], ["n", NUMBER]],
  msl: [
    ["c", "//.*"],
    ["m", String.raw`#\w+|\[\[.*?\]\]`],
    ["s", STRING],
    ["t", String.raw`\b(?:void|bool|half\d?|float\d?|double|u?(?:char|short|int|long)\d?|atomic_\w+|auto)\b`],
    ["k", String.raw`\b(?:kernel|device|constant|thread|threadgroup|struct|using|namespace|template|typename|static|inline|const|for|while|do|if|else|switch|case|default|break|continue|return|true|false|as_type|reinterpret_cast)\b`],
    ["n", NUMBER],
  ],
  llvm: [
    ["c", ";.*"],
    ["s", STRING],
    ["v", String.raw`[%@][\w.$-]+`],
    ["m", String.raw`[!#][\w.]+`],
    ["t", String.raw`\b(?:void|ptr|half|float|double|label|metadata|i\d+)\b`],
    ["k", String.raw`\b(?:define|declare|internal|br|ret|phi|load|store|call|tail|getelementptr|inbounds|icmp|fcmp|select|switch|alloca|atomicrmw|cmpxchg|fence|unreachable|[fsu]?(?:add|sub|mul|div|rem|neg)|and|or|xor|shl|[al]shr|trunc|[sz]ext|fptrunc|fpext|[us]itofp|fpto[us]i|bitcast|inttoptr|ptrtoint|extractelement|insertelement|shufflevector|extractvalue|insertvalue|freeze|nsw|nuw|exact|contract|fast|to|x)\b`],
    ["n", NUMBER],
  ],
  asm: [
    ["c", "#.*"],
    ["s", STRING],
    ["m", String.raw`^[\w.$]+:|^\s*\.[\w.]+|\.L\w+`],
    ["k", String.raw`^\s+[a-z]\w*`],
    ["v", String.raw`%\w+|\b[xwqdsv]\d+\b`],
    ["n", String.raw`[$#]-?\w+|${NUMBER}`],
  ],
};
const SCANNERS = Object.fromEntries(
  Object.entries(WORDS).map(([name, rules]) => [name, new RegExp(rules.map(([, pattern], k) => `(?<r${k}>${pattern})`).join("|"), "g")]),
);

function colour(element, language) {
  const text = element.textContent;
  const rules = WORDS[language];
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(SCANNERS[language])) {
    if (!found[0]) continue;
    if (found.index > at) parts.push(text.slice(at, found.index));
    const rule = rules.findIndex((_, k) => found.groups[`r${k}`] !== undefined);
    parts.push(make("span", { class: rules[rule][0] }, found[0]));
    at = found.index + found[0].length;
  }
  if (parts.length) element.replaceChildren(...parts, text.slice(at));
}

// --- panes -------------------------------------------------------------------------------------------------------------------

// What a pane shows of a kernel that lacks what was picked last.
const WISHES = [["Python"], ["SPIR-V", "LLVM", "IR: kernel"], ["MSL", "assembly", "IR: device"]];

class Pane {
  constructor(number) {
    this.number = number;
    this.title = "";
    this.task = "";
    this.cursor = -1;
    this.lines = [];
    this.byPlace = new Map();
    this.tabs = make("div", { class: "tabs", role: "tablist", "aria-label": `Stages of pane ${number + 1}` });
    this.note = make("div", { class: "note", role: "note" });
    this.pre = make("pre", { tabindex: "0", role: "tabpanel" });
    this.element = make("section", { class: "pane", "aria-label": `Pane ${number + 1}` }, this.tabs, this.note, this.pre);
    this.pre.addEventListener("mouseover", (event) => this.hover(event));
    this.pre.addEventListener("mouseleave", () => light(-1, this));
    this.pre.addEventListener("click", (event) => this.click(event));
    this.pre.addEventListener("keydown", (event) => this.key(event));
    this.tabs.addEventListener("keydown", (event) => moveFocus(event, this.tabs, "[role=tab]"));
  }

  show(kernel) {
    const titles = [...new Set(kernel.stages.map((stage) => stage.title))];
    const wishes = [this.title, ...WISHES[this.number], "Python"];
    const title = wishes.find((wish) => titles.includes(wish)) ?? titles[0];
    const choices = kernel.stages.filter((stage) => stage.title === title);
    const stage = choices.find((choice) => choice.task === this.task) ?? choices[0];
    this.tabs.replaceChildren(...titles.map((name) => this.tab(name, name === title, kernel)));
    if (choices.length > 1) this.tabs.append(this.taskChoice(choices, stage, kernel));
    this.pre.setAttribute("aria-label", stage.task ? `${title} of ${stage.task}` : title);
    this.fill(stage);
  }

  tab(name, chosen, kernel) {
    const tab = make("button", { type: "button", role: "tab", "aria-selected": chosen, tabindex: chosen ? 0 : -1 }, name);
    tab.addEventListener("click", () => {
      this.title = name;
      this.show(kernel);
      this.tabs.querySelector("[aria-selected=true]").focus();
      relight();
    });
    return tab;
  }

  taskChoice(choices, stage, kernel) {
    const select = make("select", { "aria-label": "Task" });
    for (const choice of choices) select.append(make("option", choice === stage ? { selected: "" } : {}, choice.task));
    select.addEventListener("change", () => {
      this.task = select.value;
      this.show(kernel);
      relight();
    });
    return select;
  }

  fill(stage) {
    this.stage = stage;
    this.cursor = -1;
    this.lines = [];
    this.byPlace = new Map();
    const unmapped = stage.lines.length && !stage.places.some((place) => place >= 0);
    this.note.textContent = stage.note || (unmapped ? "No line of this stage can be mapped to a line of Python." : "");
    this.note.hidden = !this.note.textContent;
    // Sizes are known beforehand, so the browser need not lay out what is out of sight.
    const longest = stage.lines.reduce((most, line) => Math.max(most, line.length + 7 * (line.split("\t").length - 1)), 0);
    const code = make("div", { class: "code", style: `width: calc(${longest}ch + 80px)` });
    this.observer?.disconnect();
    this.observer = new IntersectionObserver((entries) => this.uncover(entries), { root: this.pre, rootMargin: "400px" });
    for (let first = 0; first < stage.lines.length; first += CHUNK) {
      const end = Math.min(first + CHUNK, stage.lines.length);
      const chunk = make("div", { class: "chunk", style: `height: ${(end - first) * LINE_HEIGHT}px` });
      for (let k = first; k < end; k++) chunk.append(this.line(stage, k));
      code.append(chunk);
      this.observer.observe(chunk);
    }
    this.pre.replaceChildren(code);
    this.pre.scrollTo(0, 0);
  }

  line(stage, k) {
    const number = stage.numbers ? stage.numbers[k] || "" : k + 1;
    const place = stage.places[k];
    const line = make("div", { class: "line", "data-n": number, "data-k": k }, stage.lines[k]);
    if (stage.numbers && !number) line.classList.add("heading");
    if (place >= 0) line.classList.add("mapped");
    for (const each of place >= 0 ? [place, ...(stage.also[k] ?? [])] : []) {
      if (!this.byPlace.has(each)) this.byPlace.set(each, []);
      this.byPlace.get(each).push(k);
    }
    this.lines.push(line);
    return line;
  }

  // Only what comes into sight is coloured.
  uncover(entries) {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      this.observer.unobserve(entry.target);
      for (const line of entry.target.children) colour(line, this.stage.language);
    }
  }

  placeAt(event) {
    const line = event.target.closest(".line");
    return line ? this.stage.places[Number(line.dataset.k)] : -1;
  }

  hover(event) {
    light(this.placeAt(event), this);
  }

  click(event) {
    const line = event.target.closest(".line");
    if (!line || !getSelection().isCollapsed) return;
    this.setCursor(Number(line.dataset.k));
    const place = this.placeAt(event);
    pin(place === state.pinned ? -1 : place, this);
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps && this.lines.length) {
      event.preventDefault();
      this.setCursor(Math.max(0, Math.min(this.lines.length - 1, this.cursor + steps[event.key])));
      this.reveal(this.cursor);
      light(this.stage.places[this.cursor], this);
    } else if ((event.key === "Enter" || event.key === " ") && this.cursor >= 0) {
      event.preventDefault();
      const place = this.stage.places[this.cursor];
      pin(place === state.pinned ? -1 : place, this);
    }
  }

  setCursor(k) {
    this.lines[this.cursor]?.classList.remove("cursor");
    this.cursor = k;
    this.lines[k].classList.add("cursor");
  }

  // Scroll as little as it takes; to a third of the height if the line is out of sight.
  reveal(k) {
    const top = k * LINE_HEIGHT;
    const { scrollTop, clientHeight } = this.pre;
    if (top < scrollTop || top + LINE_HEIGHT > scrollTop + clientHeight) this.pre.scrollTop = Math.max(0, top - clientHeight / 3);
  }

  light(place, kind, scrolls) {
    for (const k of this.litLines ?? []) this.lines[k]?.classList.remove("lit", "pin");
    this.litLines = this.byPlace.get(place) ?? [];
    for (const k of this.litLines) this.lines[k].classList.add(...kind);
    if (!scrolls || !this.litLines.length) return;
    const { scrollTop, clientHeight } = this.pre;
    const visible = this.litLines.some((k) => k * LINE_HEIGHT >= scrollTop && (k + 1) * LINE_HEIGHT <= scrollTop + clientHeight);
    if (!visible) this.reveal(this.litLines[0]);
  }
}

// --- lines that belong together --------------------------------------------------------------------------------------------

function light(place, source = null) {
  if (place === state.hovered && source) return;
  state.hovered = place;
  relight(source);
}

function pin(place, source = null) {
  state.pinned = place;
  state.hovered = -1;
  relight(source);
  remember();
}

// What is hovered, else what is pinned.
function relight(source = null) {
  const place = state.hovered >= 0 ? state.hovered : state.pinned;
  const kind = place >= 0 && place === state.pinned ? ["lit", "pin"] : ["lit"];
  for (const pane of state.panes) pane.light(place, kind, pane !== source);
  const where = place >= 0 ? data.kernels[state.kernel].places[place] : null;
  byId("pinned").textContent = where ? `${where[0]}:${where[1]}` : "";
  byId("unpin").hidden = state.pinned < 0;
}

function moveFocus(event, box, selector) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const all = [...box.querySelectorAll(selector)];
  const at = all.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  all[(at + step + all.length) % all.length].focus();
}

// --- the kernel -----------------------------------------------------------------------------------------------------------

function bytes(count) {
  return count < 10000 ? `${count} bytes` : `${(count / 1024).toFixed(1)} KiB`;
}

function table(caption, titles, rows, numeric) {
  const cell = (tag, text, k) => make(tag, numeric.includes(k) ? { class: "number" } : {}, String(text));
  const head = make("tr", {}, ...titles.map((title, k) => cell("th", title, k)));
  const body = rows.map((row) => make("tr", {}, ...row.map((text, k) => cell("td", text, k))));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
}

function describe(kernel) {
  const size = kernel.target === "cpu" ? (kernel.tasks[0]?.size ?? 0) : kernel.tasks.reduce((sum, task) => sum + task.size, 0);
  const facts = [
    `compiled in ${(kernel.seconds * 1000).toFixed(1)} ms`,
    ...(size ? [`${bytes(size)} of ${kernel.target === "cpu" ? "object code" : "SPIR-V"}`] : []),
    `arguments: ${bytes(kernel.block.size)}`,
    ...(kernel.temps ? [`temporaries: ${bytes(kernel.temps)}`] : []),
    ...(kernel.cpu ? [`CPU: ${kernel.cpu}`] : []),
    `key ${kernel.key.slice(0, 8)}`,
  ];
  const summary = make("summary", {}, make("code", {}, kernel.signature), make("span", { class: "badge" }, kernel.arch));
  summary.append(...facts.map((fact) => make("span", { class: "fact" }, fact)));
  const details = make("details", state.open ? { open: "" } : {}, summary, make("div", { class: "tables" }, ...surveyTable(kernel), taskTable(kernel), blockTable(kernel)));
  details.addEventListener("toggle", () => (state.open = details.open));
  byId("about").replaceChildren(details);
}

// Only pages of `spirograd survey` have one.
function surveyTable(kernel) {
  const titles = ["device", "task", "outcome", "registers", "spills", "instructions", "occupancy", "ms"];
  return kernel.survey ? [table("Devices", titles, kernel.survey, [3, 4, 5, 7])] : [];
}

function taskTable(kernel) {
  const shader = kernel.tasks.some((task) => task.capabilities.length);
  const titles = ["task", "kind", "bounds", "known from", ...(shader ? ["group size", "groups", "module", "capabilities"] : [])];
  const rows = kernel.tasks.map((task) => [
    task.name,
    task.kind,
    task.bounds,
    task.known,
    ...(shader ? [task.group_size, task.groups, bytes(task.size), task.capabilities.join(" ")] : []),
  ]);
  return table("Tasks", titles, rows, []);
}

function blockTable(kernel) {
  const bound = kernel.block.slots.some((slot) => slot.bindings.length);
  const titles = ["offset", "name", "kind", "type", ...(bound ? ["set 0 (task:binding)"] : [])];
  const rows = kernel.block.slots.map((slot) => [
    slot.offset,
    slot.name,
    slot.kind,
    slot.type,
    ...(bound ? [slot.bindings.join(" ")] : []),
  ]);
  return table(`Argument block, ${bytes(kernel.block.size)}`, titles, rows, [0]);
}

function choose(number, task = "") {
  if (number !== state.kernel) state.hovered = state.pinned = -1;
  state.kernel = number;
  state.chosen = true;
  const kernel = data.kernels[number];
  describe(kernel);
  for (const pane of state.panes) {
    pane.task = task || pane.task;
    pane.show(kernel);
    const at = task && !pane.stage.task ? pane.stage.lines.findIndex((line) => line.includes(task)) : -1;
    if (at >= 0) pane.reveal(at);
  }
  for (const button of byId("kernels").querySelectorAll("button")) {
    button.setAttribute("aria-current", Number(button.dataset.kernel) === number && button.dataset.task === task);
  }
  relight();
  remember();
}

// --- the list of kernels ----------------------------------------------------------------------------------------------------

function entry(kernel, number) {
  const types = kernel.signature.slice(kernel.name.length);
  const name = make("span", { class: "name" }, kernel.name, make("span", { class: "types" }, types));
  const top = make("button", { type: "button", class: "kernel", "data-kernel": number, "data-task": "" }, name, make("span", { class: "badge" }, kernel.arch));
  const tasks = kernel.tasks.map((task) => {
    const button = make("button", { type: "button", class: "task", "data-kernel": number, "data-task": task.name });
    button.append(make("span", { class: "name" }, task.name), task.kind === "serial" ? "serial" : "");
    return make("li", {}, button);
  });
  return make("li", {}, top, make("ul", {}, ...tasks));
}

// All words must be there, in any order: `cpu fill` finds the kernels `fill` of the CPU.
function filter() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let left = 0;
  data.kernels.forEach((kernel, k) => {
    const text = [kernel.signature, kernel.arch, kernel.key, ...kernel.tasks.map((task) => task.name)].join(" ").toLowerCase();
    const hidden = !words.every((word) => text.includes(word));
    byId("kernels").children[k].hidden = hidden;
    left += hidden ? 0 : 1;
  });
  byId("kernels").lastElementChild.hidden = left > 0;
}

// --- the address: #kernel=1&pin=4 ------------------------------------------------------------------------------------------

function remember() {
  const hash = `#kernel=${state.kernel}` + (state.pinned >= 0 ? `&pin=${state.pinned}` : "");
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

function recall() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const number = (name, count) => {
    const value = wanted.has(name) ? Number(wanted.get(name)) : -1;
    return Number.isInteger(value) && value >= 0 && value < count ? value : -1;
  };
  const kernel = Math.max(0, number("kernel", data.kernels.length));
  const place = number("pin", data.kernels[kernel].places.length);
  choose(kernel);
  if (place >= 0) pin(place);
}

// --- the whole page ----------------------------------------------------------------------------------------------------------

function setCount(count) {
  byId("count").value = count;
  while (state.panes.length > count) state.panes.pop().element.remove();
  while (state.panes.length < count) {
    const pane = new Pane(state.panes.length);
    state.panes.push(pane);
    byId("panes").append(pane.element);
    if (state.chosen) pane.show(data.kernels[state.kernel]);
  }
  relight();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "light" : "dark";
}

function keys(event) {
  const typing = event.target.closest("input, select");
  if (event.key === "Escape") {
    pin(-1);
    if (typing) typing.blur();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    byId("side").classList.remove("closed");
    byId("filter").focus();
  }
  const step = { "[": -1, "]": 1 }[event.key];
  if (step) choose((state.kernel + step + data.kernels.length) % data.kernels.length);
}

function start() {
  byId("title").textContent = data.title;
  byId("kernels").append(...data.kernels.map(entry), make("li", { class: "none", hidden: "" }, "no such kernel"));
  byId("kernels").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose(Number(button.dataset.kernel), button.dataset.task);
  });
  byId("filter").addEventListener("input", filter);
  byId("unpin").addEventListener("click", () => pin(-1));
  byId("menu").addEventListener("click", () => {
    byId("menu").setAttribute("aria-expanded", !byId("side").classList.toggle("closed"));
  });
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  byId("count").addEventListener("change", (event) => setCount(Number(event.target.value)));
  document.addEventListener("keydown", keys);
  addEventListener("hashchange", recall);
  if (innerWidth <= 800) byId("menu").click();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setCount(innerWidth > 1500 ? 3 : 2);
  recall();
}

start();
