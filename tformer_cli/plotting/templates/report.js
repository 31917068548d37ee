const PAGE_SIZE = 20;
const CLASSES = ["first", "second"];
const LETTERS = ["A", "B"];
const isPair = content.systems.length > 1;

// A section of the page and its link above.
function section(title, note) {
  const id = title.toLowerCase().replace(/\W+/g, "-");
  make("a", document.getElementById("sections"), { textContent: title, href: `#${id}` });
  const element = make("section", view, { id });
  make("h2", element, { textContent: title });
  if (note) make("p", element, { textContent: note, className: "note", dir: "auto" });
  return element;
}

function showFacts() {
  const list = document.getElementById("facts");
  for (const [name, value] of Object.entries(content.facts)) {
    const pair = make("div", list);
    make("dt", pair, { textContent: name });
    make("dd", pair, { textContent: value, dir: "auto" });
  }
}

function headed(parent, title, head, className = "") {
  // Arrow keys scroll a wide table that has the focus.
  const scroll = make("div", parent, { className: "scroll", tabIndex: 0, role: "group" });
  scroll.setAttribute("aria-label", title);
  const table = make("table", scroll, { className });
  const row = make("tr", make("thead", table));
  head.forEach((text) => make("th", row, { textContent: text, scope: "col" }));
  return make("tbody", table);
}

function showTable(table) {
  const body = headed(section(table.title, table.note), table.title, table.head);
  table.rows.forEach(([name, ...cells]) => {
    const row = make("tr", body);
    make("th", row, { textContent: name, scope: "row" });
    cells.forEach((text) => make("td", row, { textContent: text }));
  });
}

function key(parent, names) {
  const line = make("p", parent, { className: "note" });
  names.forEach((name, i) => {
    const item = make("span", line, { className: `key ${CLASSES[i % 2]}` });
    make("i", item);
    make("bdi", item, { textContent: name });
  });
}

// Round distances between ticks: at most `count` of them reach `highest`.
function ticks(highest, count) {
  const power = 10 ** Math.floor(Math.log10(highest / count || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((s) => highest / s <= count);
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, i) => i * step);
}

const short = (number) => number.toLocaleString("en", { maximumSignificantDigits: 3 });

const MAX_CHART_WIDTH = 440;

function showChart(parent, chart) {
  const names = Object.keys(chart.curves);
  const figure = make("div", parent);
  make("h3", figure, { textContent: chart.title });
  if (names.length > 1) key(figure, names);
  const picture = draw("svg", figure, { role: "img" });
  const ends = names.map((name) => `${name}: ${short(chart.curves[name].at(-1)[1])}`).join(", ");
  picture.setAttribute("aria-label", `${chart.title} by step; at the end ${ends}`);
  // A narrow chart has fewer labels, not smaller ones.
  const fit = () => drawCurves(picture, chart.curves, Math.min(figure.clientWidth, MAX_CHART_WIDTH));
  fit();
  addEventListener("resize", fit);
}

function drawCurves(picture, curves, width) {
  const points = Object.values(curves).flat();
  const [height, left, right, bottom] = [210, 48, 32, 24];
  const highest = (axis) => points.reduce((high, point) => Math.max(high, point[axis]), 0) || 1;
  const [lastX, lastY] = [highest(0), highest(1) * 1.04];
  const x = (value) => left + (width - left - right) * value / lastX;
  const y = (value) => 8 + (height - bottom - 8) * (1 - value / lastY);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.replaceChildren();
  ticks(lastY, 5).forEach((value) => {
    draw("line", picture, { x1: left, x2: width - right, y1: y(value), y2: y(value) });
    draw("text", picture, { x: left - 6, y: y(value) + 4, "text-anchor": "end" })
      .textContent = short(value);
  });
  const labelWidth = 7 * lastX.toLocaleString("en").length + 6;
  const numLabels = Math.min(6, Math.floor((width - left - right) / labelWidth));
  ticks(lastX, numLabels).filter(Number.isInteger).forEach((value) => {
    draw("text", picture, { x: x(value), y: height - 8, "text-anchor": "middle" })
      .textContent = value.toLocaleString("en");
  });
  Object.entries(curves).forEach(([name, curve], i) => {
    const group = draw("g", picture, { class: CLASSES[i % 2] });
    draw("path", group, { d: `M${curve.map(([a, b]) => `${x(a)} ${y(b)}`).join("L")}` });
    curve.forEach(([a, b]) => {
      const dot = draw("circle", group, { cx: x(a), cy: y(b), r: curve.length > 60 ? 1.2 : 2.6 });
      draw("title", dot).textContent = `step ${a.toLocaleString("en")}, ${name}: ${short(b)}`;
    });
  });
}

// A bar up to a score, and a whisker over its interval.
function meter(cell, [score, low, high], i) {
  const line = make("div", cell, { className: CLASSES[i] });
  make("span", line, { textContent: score.toFixed(1),
    title: `95% interval: ${low.toFixed(1)} to ${high.toFixed(1)}` });
  const picture = draw("svg", line, { "aria-hidden": "true" });
  const percent = (value) => `${Math.min(Math.max(value, 0), 100)}%`;
  draw("rect", picture, { width: percent(score), height: "100%", rx: 2, fill: "currentColor",
    "fill-opacity": 0.35 });
  draw("line", picture, { x1: percent(low), x2: percent(high), y1: "50%", y2: "50%",
    stroke: "currentColor", "stroke-width": 2 });
}

function showBreakdown(breakdown) {
  const element = section(breakdown.title, breakdown.note);
  if (isPair) key(element, content.systems.map((name, i) => `${LETTERS[i]} ${name}`));
  const metrics = Object.keys(breakdown.buckets[0].scores);
  const body = headed(element, breakdown.title, ["", "sentences", ...metrics], "wide");
  const heads = [...body.parentElement.querySelectorAll("thead th")].slice(2);
  heads.forEach((head) => head.classList.add("meter"));
  breakdown.buckets.forEach((bucket) => {
    const row = make("tr", body);
    make("th", row, { textContent: bucket.name, scope: "row" });
    make("td", row, { textContent: bucket.num_sentences.toLocaleString("en") });
    metrics.forEach((metric) => {
      const cell = make("td", row, { className: "meter" });
      bucket.scores[metric].forEach((score, i) => meter(cell, score, i));
    });
  });
}

function showText(list, name, segments, language, className = "") {
  make("dt", list, { textContent: name, className });
  const text = make("dd", list, { dir: "auto", lang: language, className });
  segments.forEach((segment, i) => {
    if (i % 2) make("mark", text, { textContent: segment });
    else text.append(segment);
  });
}

function showSentence(parent, sentence, words) {
  const [from, to] = content.languages;
  const card = make("article", parent);
  const head = make("header", card);
  make("span", head, { textContent: `line ${(sentence.line + 1).toLocaleString("en")}` });
  sentence.scores.forEach((score, i) => make("span", head, {
    textContent: `${isPair ? `${LETTERS[i]} ` : ""}chrF ${score.toFixed(1)}` }));
  words.forEach((word) => make("bdi", head, { textContent: word, dir: "auto" }));
  const list = make("dl", card);
  if (sentence.source !== null) showText(list, "source", [sentence.source], from);
  sentence.references.forEach((text) => showText(list, "reference", [text], to));
  sentence.hypotheses.forEach((segments, i) => isPair
    ? showText(list, LETTERS[i], segments, to, CLASSES[i])
    : showText(list, "translation", segments, to));
}

function searchText(sentence) {
  const texts = [sentence.source ?? "", ...sentence.references,
    ...sentence.hypotheses.map((segments) => segments.join(""))];
  return texts.join("\n").toLowerCase();
}

function showSentences() {
  const numShown = content.sentences.length;
  const element = section("Sentences", numShown < content.num_sentences
    ? `The page holds ${numShown.toLocaleString("en")} of ` +
      `${content.num_sentences.toLocaleString("en")} sentences.` : "");
  const byLine = new Map(content.sentences.map((sentence) => [sentence.line, sentence]));
  const texts = new Map();
  const lists = [...content.lists, { name: "all", note: "In the order of the text.",
    total: numShown, lines: content.sentences.map((sentence) => [sentence.line, []]) }];
  const buttons = make("div", element, { className: "lists", role: "group" });
  buttons.setAttribute("aria-label", "Lists of sentences");
  const note = make("p", element, { className: "note" });
  const tools = make("div", element, { className: "tools" });
  const search = make("input", tools, { type: "search", placeholder: "Search in this list  ( / )" });
  search.setAttribute("aria-label", "Search in this list");
  const back = make("button", tools, { type: "button", textContent: "Back" });
  const next = make("button", tools, { type: "button", textContent: "Next" });
  const position = make("output", tools);
  const cards = make("div", element);
  let [list, start, lines] = [lists[0], 0, []];

  function show(first) {
    start = first;
    cards.replaceChildren();
    lines.slice(start, start + PAGE_SIZE).forEach(
      ([line, words]) => showSentence(cards, byLine.get(line), words));
    const end = Math.min(start + PAGE_SIZE, lines.length);
    position.textContent = lines.length
      ? `${start + 1}–${end} of ${lines.length.toLocaleString("en")}` : "none";
    back.disabled = start === 0;
    next.disabled = end >= lines.length;
  }

  function filter() {
    const wanted = search.value.toLowerCase();
    lines = list.lines.filter(([line]) => {
      if (!wanted) return true;
      if (!texts.has(line)) texts.set(line, searchText(byLine.get(line)));
      return texts.get(line).includes(wanted);
    });
    show(0);
  }

  function choose(chosen) {
    list = chosen;
    [...buttons.children].forEach(
      (button, i) => button.setAttribute("aria-pressed", lists[i] === list));
    const isCut = list.lines.length < list.total;
    note.textContent = list.note +
      (isCut ? ` The first ${list.lines.length} of ${list.total.toLocaleString("en")}.` : "");
    filter();
  }

  function turn(distance) {
    if (distance < 0 ? back.disabled : next.disabled) return;
    const pressed = document.activeElement;
    show(start + distance * PAGE_SIZE);
    // The last button that could be pressed keeps no focus.
    if (pressed.disabled) (pressed === next ? back : next).focus();
    tools.scrollIntoView({ block: "nearest" });
  }

  lists.forEach((each) => {
    const button = make("button", buttons, { type: "button", textContent: each.name });
    make("b", button, { textContent: each.total.toLocaleString("en") });
    button.disabled = each.total === 0;
    button.addEventListener("click", () => choose(each));
  });
  search.addEventListener("input", filter);
  back.addEventListener("click", () => turn(-1));
  next.addEventListener("click", () => turn(1));
  document.addEventListener("keydown", (event) => {
    if (event.target === search || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    // Arrow keys have their own use where something scrolls, and for a selection.
    if (event.shiftKey || event.target.closest(".scroll, #sections")) return;
    if (event.key === "ArrowLeft") turn(-1);
    if (event.key === "ArrowRight") turn(1);
  });
  choose(lists.find((each) => each.total > 0) ?? lists[0]);
}

showFacts();
content.tables.filter((table) => table.title !== "Terms").forEach(showTable);
if (content.charts.length) {
  const charts = make("div", section("Training", "By optimizer step."), { className: "charts" });
  content.charts.forEach((chart) => showChart(charts, chart));
}
content.breakdowns.forEach(showBreakdown);
content.tables.filter((table) => table.title === "Terms").forEach(showTable);
showSentences();
