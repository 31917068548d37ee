// The color of a number from 0 to 1 on a gradient through `stops`, as [red, green, blue].
function gradient(stops, number) {
  const position = Math.min(Math.max(number, 0), 1) * (stops.length - 1);
  const index = Math.min(Math.floor(position), stops.length - 2);
  const [low, high] = [stops[index], stops[index + 1]].map(
    (stop) => [1, 3, 5].map((start) => parseInt(stop.slice(start, start + 2), 16)));
  return low.map((part, i) => Math.round(part + (high[i] - part) * (position - index)));
}

// A weight of exactly 0 is masked.
function weightColor(weight) {
  return gradient(weight === 0 ? [content.masked, content.masked] : content.weights, weight);
}

// Make a token of spaces alone visible.
function label(token) {
  return token.trim() === "" ? content.space.repeat(token.length) : token;
}

function paint(canvas, rows, color) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((number, i) => image.data.set([...color(number), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

function heading(title, note) {
  make("h2", view, { textContent: title });
  make("p", view, { textContent: note, className: "note" });
}

function clamp(index, count) {
  return Math.min(Math.max(index, 0), count - 1);
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// Call `visit` with the row and column that an arrow key leads to from those of `position()`.
function onArrow(element, position, numRows, numColumns, visit) {
  element.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault(); // no scrolling
    const [row, column] = position();
    visit(clamp(row + step[0], numRows), clamp(column + step[1], numColumns));
  });
}

function showMaps(maps) {
  view.replaceChildren();
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
  make("i", scale).style.cssText = `width: 0.8rem; background: ${content.masked}`;
  make("span", scale, { textContent: "masked" });
  const readout = make("p", view, { className: "readout" });
  readout.setAttribute("aria-live", "polite");
  const scroll = make("div", view, { className: "scroll" });
  const buttons = [];

  function choose(layer, head) {
    buttons.forEach((button) => button.setAttribute(
      "aria-pressed", button.layer === layer && button.head === head));
    const name = `layer ${maps.layers[layer]}, head ${maps.heads[head]}`;
    showMap(scroll, readout, maps, maps.weights[layer][head], name);
  }

  maps.layers.forEach((layerNumber, layer) => {
    make("span", heads, { textContent: `layer ${layerNumber}` });
    maps.heads.forEach((headNumber, head) => {
      const button = make("button", heads, { layer, head });
      button.setAttribute("aria-label", `layer ${layerNumber}, head ${headNumber}`);
      paint(make("canvas", button), maps.weights[layer][head], weightColor);
      button.addEventListener("click", () => choose(layer, head));
      buttons.push(button);
    });
  });
  choose(0, 0);
}

function showMap(scroll, readout, maps, weights, name) {
  scroll.replaceChildren();
  readout.textContent = `${name}: point at a cell, or choose one with Tab and the arrow keys`;
  const table = make("table", scroll);
  table.setAttribute("role", "grid");
  table.style.setProperty("--cell", maps.columns.length > 30 ? "15px" : "24px");
  const head = make("tr", make("thead", table));
  make("td", head);
  const columnLabels = maps.columns.map(
    (token) => make("th", head, { textContent: label(token), dir: "auto", scope: "col" }));
  const body = make("tbody", table);
  const cells = [];
  const rowLabels = weights.map((row, i) => {
    const line = make("tr", body);
    const rowLabel = make(
      "th", line, { textContent: label(maps.rows[i]), dir: "auto", scope: "row" });
    cells.push(row.map((weight) => {
      const cell = make("td", line, { tabIndex: -1 });
      cell.style.backgroundColor = `rgb(${weightColor(weight).join()})`;
      return cell;
    }));
    return rowLabel;
  });
  let chosen = [0, 0]; // the cell that Tab leads to
  cells[0][0].tabIndex = 0;

  function read(row, column) {
    cells[chosen[0]][chosen[1]].tabIndex = -1;
    chosen = [row, column];
    cells[row][column].tabIndex = 0;
    rowLabels.forEach((element, i) => element.classList.toggle("on", i === row));
    columnLabels.forEach((element, i) => element.classList.toggle("on", i === column));
    readout.replaceChildren();
    make("span", readout, { textContent: `${name}: ` });
    make("bdi", readout, { textContent: label(maps.rows[row]) });
    make("span", readout, { textContent: " attends to " });
    make("bdi", readout, { textContent: label(maps.columns[column]) });
    const weight = weights[row][column];
    const text = weight === 0 ? ": masked" : ` with weight ${weight.toFixed(3)}`;
    make("span", readout, { textContent: text });
  }

  for (const kind of ["mouseover", "focusin"]) {
    body.addEventListener(kind, (event) => {
      const cell = event.target.closest("td");
      if (cell) read(cell.parentElement.rowIndex - 1, cell.cellIndex - 1);
    });
  }
  onArrow(body, () => chosen, weights.length, maps.columns.length,
    (row, column) => cells[row][column].focus());
}

function showTables(tables) {
  view.replaceChildren();
  tables.forEach((table) => {
    heading(table.title, table.note);
    (table.kind === "bias" ? showBias : showValues)(table);
  });
}

function showValues(table) {
  const readout = make("p", view, { className: "readout" });
  readout.textContent = "point at the picture, or choose it with Tab and use the arrow keys";
  readout.setAttribute("aria-live", "polite");
  const canvas = make("canvas", view, { className: "table", tabIndex: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", table.title);
  const highest = table.values.flat().reduce((high, value) => Math.max(high, Math.abs(value)), 0);
  paint(canvas, table.values, (value) => gradient(content.signs, (value / highest + 1) / 2));
  const [numRows, numColumns] = [table.rows.length, table.columns.length];
  let chosen = [0, 0];

  function read(row, column) {
    chosen = [row, column];
    const wavelength = (2 * Math.PI / table.columns[column]).toFixed(1);
    const what = table.kind === "vectors"
      ? `component ${column}` : `pair ${column}, wavelength ${wavelength} tokens`;
    const value = table.values[row][column].toFixed(3);
    readout.textContent = `position ${table.rows[row]}, ${what}: ${value}`;
  }

  canvas.addEventListener("mousemove", (event) => {
    const index = (offset, size, count) => clamp(Math.floor(offset / size * count), count);
    read(index(event.offsetY, canvas.clientHeight, numRows),
      index(event.offsetX, canvas.clientWidth, numColumns));
  });
  canvas.addEventListener("focus", () => read(...chosen));
  onArrow(canvas, () => chosen, numRows, numColumns, read);
}

// After the last color they repeat dashed, then dotted.
function lineStyle(index) {
  const repeats = Math.floor(index / content.colors.length);
  return {
    stroke: content.colors[index % content.colors.length],
    "stroke-dasharray": ["none", "6 3", "1.5 2.5"][repeats % 3],
  };
}

function showBias(table) {
  const finite = table.values.flat().filter((value) => value !== null);
  // Not Math.min(...finite): a function takes no more than some ten thousand arguments.
  const [low, high] = [Math.min, Math.max].map((pick) => finite.reduce((a, b) => pick(a, b)));
  const [first, last] = [table.columns[0], table.columns[table.columns.length - 1]];
  const x = (distance) => 100 * (distance - first) / (last - first || 1);
  const y = (value) => high === low ? 50 : 2 + 96 * (high - value) / (high - low);
  const picture = draw("svg", view, { viewBox: "0 0 100 100", preserveAspectRatio: "none",
    role: "img", "aria-label": table.title });
  const legend = make("p", view, { className: "legend" });
  table.values.forEach((values, i) => {
    const d = values.map((value, j) => value === null ? "" :
      `${j && values[j - 1] !== null ? "L" : "M"}${x(table.columns[j])} ${y(value)}`).join("");
    const line = draw("path", picture, { d, ...lineStyle(i) });
    const name = table.rows.length ? `head ${table.rows[i]}` : "all heads";
    // A browser shows the title of the line below the pointer.
    draw("title", line).textContent = name;
    const item = make("span", legend);
    const sample = draw("svg", item, { "aria-hidden": "true" });
    draw("line", sample, { x1: "0", x2: "100%", y1: "50%", y2: "50%", ...lineStyle(i) });
    item.append(name);
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
