"""Attention maps and tables of positions as one page that a browser shows without a network."""

import html
import json
from dataclasses import asdict
from pathlib import Path

from tformer_cli.plotting.curves import COLORS
from tformer_cli.plotting.panels import SIGNS, UNSEEN, WEIGHTS
from tformer_cli.plotting.sentence import (
    BLANK,
    MAP_NOTES,
    MAP_TITLES,
    TABLE_NOTES,
    Sentence,
    table_title,
)
from tformer_cli.storage.atomic import write_text

# What the page may do at most: show itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

PAGE = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="text" dir="auto">{source}</p>
<p class="text" dir="auto">{target}</p>
<nav id="parts"></nav>
</header>
<main id="view"></main>
<noscript>The maps are drawn by JavaScript, which is switched off.</noscript>
<script id="content" type="application/json">{content}</script>
<script>
{script}</script>
</body>
</html>
"""

STYLE = """\
body { font: 15px/1.4 system-ui, sans-serif; color: #111; margin: 1.5rem; }
h2 { font-size: 1.2rem; margin: 1rem 0 0; }
p { margin: 0.2rem 0; }
.text { font-size: 1.15rem; unicode-bidi: plaintext; }
.note { color: #666; }
button { font: inherit; padding: 0.25rem 0.7rem; border: 1px solid #999; background: #fff;
  border-radius: 4px; cursor: pointer; }
button[aria-pressed="true"] { background: #0072B2; border-color: #0072B2; color: #fff; }
nav { display: flex; flex-wrap: wrap; gap: 0.4rem; margin-top: 0.8rem; }
.heads { display: grid; gap: 6px; justify-content: start; margin: 0.8rem 0; align-items: center; }
.heads span { color: #666; font-size: 0.8rem; text-align: center; }
.heads button { padding: 2px; line-height: 0; }
.heads canvas { width: 64px; height: 64px; }
canvas { image-rendering: pixelated; }
.table { border: 1px solid #999; width: min(100%, 60rem); height: 18rem; }
.said { font-variant-numeric: tabular-nums; min-height: 1.6em; font-size: 1.05rem; }
.scale { display: flex; align-items: center; gap: 0.5rem; font-size: 0.85rem; color: #444; }
.scale i { display: inline-block; height: 0.8rem; border: 1px solid #999; }
.around { overflow-x: auto; }
table { border-collapse: collapse; }
th { font-weight: normal; font-size: 0.85rem; white-space: pre; unicode-bidi: plaintext; }
tbody th { text-align: right; padding: 0 0.4rem; line-height: 1; }
thead th { writing-mode: vertical-rl; text-align: right; padding: 0.4rem 0; line-height: 1; }
thead td { border: 0; }
td { padding: 0; border: 1px solid #ddd; width: var(--cell); min-width: var(--cell);
  height: var(--cell); }
th.on { background: #ffe9a8; }
td:hover { outline: 2px solid #D55E00; }
svg { width: min(100%, 60rem); height: 18rem; border: 1px solid #999; }
svg path { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.legend span { margin-inline-end: 1rem; white-space: nowrap; }
"""

SCRIPT = """\
"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const view = document.getElementById("view");

function make(name, parent, properties = {}) {
  const element = Object.assign(document.createElement(name), properties);
  parent.append(element);
  return element;
}

// The colour of a number from 0 to 1 on a line through some colours, as [red, green, blue].
function between(stops, number) {
  const place = Math.min(Math.max(number, 0), 1) * (stops.length - 1);
  const from = Math.min(Math.floor(place), stops.length - 2);
  const [one, other] = [stops[from], stops[from + 1]].map(
    (stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return one.map((part, at) => Math.round(part + (other[at] - part) * (place - from)));
}

// A weight of exactly 0 is one that may not be looked at.
function ofWeight(weight) {
  return between(weight === 0 ? [content.unseen, content.unseen] : content.weights, weight);
}

// A token of nothing but blanks is to be seen too.
function shown(token) {
  return token.trim() === "" ? content.blank.repeat(token.length) : token;
}

function paint(canvas, rows, colour) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((number, at) => image.data.set([...colour(number), 255], 4 * at));
  context.putImageData(image, 0, 0);
}

function heading(title, note) {
  view.replaceChildren();
  make("h2", view, { textContent: title });
  make("p", view, { textContent: note, className: "note" });
}

function showMaps(maps) {
  heading(maps.title, maps.note);
  const heads = make("div", view, { className: "heads" });
  heads.style.gridTemplateColumns = `repeat(${maps.heads.length + 1}, auto)`;
  make("span", heads);
  maps.heads.forEach((head) => make("span", heads, { textContent: `head ${head}` }));
  const scale = make("p", view, { className: "scale" });
  make("span", scale, { textContent: "0" });
  make("i", scale).style.cssText =
    `width: 8rem; background: linear-gradient(to right, ${content.weights.join(", ")})`;
  make("span", scale, { textContent: "1, each row sums to 1" });
  make("i", scale).style.cssText = `width: 0.8rem; background: ${content.unseen}`;
  make("span", scale, { textContent: "may not be looked at" });
  const said = make("p", view, { className: "said" });
  said.setAttribute("aria-live", "polite");
  const around = make("div", view, { className: "around" });
  const buttons = [];

  function choose(layer, head) {
    buttons.forEach((button) => button.setAttribute(
      "aria-pressed", button.layer === layer && button.head === head));
    const name = `layer ${maps.layers[layer]}, head ${maps.heads[head]}`;
    showMap(around, said, maps, maps.weights[layer][head], name);
  }

  maps.layers.forEach((number, layer) => {
    make("span", heads, { textContent: `layer ${number}` });
    maps.heads.forEach((other, head) => {
      const button = make("button", heads, { layer, head });
      button.setAttribute("aria-label", `layer ${number}, head ${other}`);
      paint(make("canvas", button), maps.weights[layer][head], ofWeight);
      button.addEventListener("click", () => choose(layer, head));
      buttons.push(button);
    });
  });
  choose(0, 0);
}

function showMap(around, said, maps, weights, name) {
  around.replaceChildren();
  said.textContent = `${name}: point at a cell`;
  const table = make("table", around);
  table.style.setProperty("--cell", maps.columns.length > 30 ? "15px" : "24px");
  const top = make("tr", make("thead", table));
  make("td", top);
  const above = maps.columns.map(
    (token) => make("th", top, { textContent: shown(token), dir: "auto", scope: "col" }));
  const body = make("tbody", table);
  const beside = weights.map((row, at) => {
    const line = make("tr", body);
    const name = shown(maps.rows[at]);
    const label = make("th", line, { textContent: name, dir: "auto", scope: "row" });
    row.forEach((weight) => {
      make("td", line).style.backgroundColor = `rgb(${ofWeight(weight).join()})`;
    });
    return label;
  });
  body.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    const [row, column] = [cell.parentElement.rowIndex - 1, cell.cellIndex - 1];
    beside.forEach((label, at) => label.classList.toggle("on", at === row));
    above.forEach((label, at) => label.classList.toggle("on", at === column));
    said.replaceChildren();
    make("span", said, { textContent: `${name}: ` });
    make("bdi", said, { textContent: shown(maps.rows[row]) });
    make("span", said, { textContent: " looks at " });
    make("bdi", said, { textContent: shown(maps.columns[column]) });
    const weight = weights[row][column];
    make("span", said, { textContent: weight === 0 ? " never" : ` by ${weight.toFixed(3)}` });
  });
}

function showTables(tables) {
  view.replaceChildren();
  tables.forEach((table) => {
    make("h2", view, { textContent: table.title });
    make("p", view, { textContent: table.note, className: "note" });
    (table.kind === "bias" ? showBias : showValues)(table);
  });
}

function showValues(table) {
  const said = make("p", view, { className: "said", textContent: "point at the picture" });
  const canvas = make("canvas", view, { className: "table" });
  const most = table.values.flat().reduce((high, value) => Math.max(high, Math.abs(value)), 0);
  paint(canvas, table.values, (value) => between(content.signs, (value / most + 1) / 2));
  canvas.addEventListener("mousemove", (event) => {
    const at = (offset, size, count) =>
      Math.min(Math.max(Math.floor(offset / size * count), 0), count - 1);
    const row = at(event.offsetY, canvas.clientHeight, table.rows.length);
    const column = at(event.offsetX, canvas.clientWidth, table.columns.length);
    const period = (2 * Math.PI / table.columns[column]).toFixed(1);
    const what = table.kind === "vectors"
      ? `component ${column}` : `pair ${column}, which turns once in ${period} tokens`;
    said.textContent = `place ${table.rows[row]}, ${what}: ${table.values[row][column].toFixed(3)}`;
  });
}

function showBias(table) {
  const found = table.values.flat().filter((value) => value !== null);
  // Not Math.min(...found): a function takes no more than some ten thousand arguments.
  const [low, high] = [Math.min, Math.max].map((choose) => found.reduce((a, b) => choose(a, b)));
  const [first, last] = [table.columns[0], table.columns[table.columns.length - 1]];
  const across = (distance) => 100 * (distance - first) / (last - first || 1);
  const up = (value) => high === low ? 50 : 2 + 96 * (high - value) / (high - low);
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", "0 0 100 100");
  picture.setAttribute("preserveAspectRatio", "none");
  view.append(picture);
  const legend = make("p", view, { className: "legend" });
  table.values.forEach((values, number) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const points = table.columns.map((distance, at) => [across(distance), values[at]]);
    line.setAttribute("d", points.map(([x, value], at) => value === null ? "" :
      `${at && values[at - 1] !== null ? "L" : "M"}${x} ${up(value)}`).join(""));
    const colour = content.colours[number % content.colours.length];
    const name = table.rows.length ? `head ${table.rows[number]}` : "all heads";
    line.setAttribute("stroke", colour);
    // Shown where the line is pointed at.
    line.append(document.createElementNS("http://www.w3.org/2000/svg", "title"));
    line.firstChild.textContent = name;
    picture.append(line);
    make("span", legend, { textContent: name }).style.color = colour;
  });
  make("p", view, { className: "note", textContent:
    `from ${first} to ${last} tokens from the query to the key; ` +
    `from ${low.toFixed(2)} below to ${high.toFixed(2)} above` });
}

const views = content.maps.map((maps) => [maps.title, () => showMaps(maps)]);
if (content.positions.length) views.push(["Positions", () => showTables(content.positions)]);
const choices = views.map(([title, show]) => {
  const button = make("button", document.getElementById("parts"), { textContent: title });
  button.addEventListener("click", () => {
    choices.forEach((other) => other.setAttribute("aria-pressed", other === button));
    show();
  });
  return button;
});
choices[0].click();
"""


def page(sentence: Sentence) -> str:
    """Return an HTML page in which a layer and a head can be chosen, and weights be read."""
    content = {
        "maps": [
            {"title": MAP_TITLES[maps.part], "note": MAP_NOTES[maps.part], **asdict(maps)}
            for maps in sentence.maps
        ],
        "positions": [
            {"title": table_title(table), "note": TABLE_NOTES[table.kind], **asdict(table)}
            for table in sentence.positions
        ],
        "weights": WEIGHTS,
        "signs": SIGNS,
        "unseen": UNSEEN,
        "colours": COLORS,
        "blank": BLANK,
    }
    # Inside a script nothing but a tag can end it.
    embedded = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    return PAGE.format(
        policy=POLICY,
        title=html.escape(sentence.source),
        style=STYLE,
        source=html.escape(sentence.source),
        target=html.escape(sentence.target or ""),
        content=embedded,
        script=SCRIPT,
    )


def save_page(sentence: Sentence, file: Path) -> None:
    """Write the page.

    Raises:
        StorageError: the system does not let it be written.
    """
    write_text(file, page(sentence))
