// The page of `tformer serve`. Text from outside is only ever written as textContent.

import { direction, languageName, languageTag } from "./language.js";

const PAUSE = 300; // milliseconds without a key before a text is translated
const MAX_SHOWN = 5; // translations, unless the server has a lower limit
const SILENT = "The server does not answer; is it running?";

const element = Object.fromEntries(
  [...document.querySelectorAll("[id]")].map((part) => [part.id, part]),
);
const { source, mirror, target, status } = element;

let models = [];
let maxShown = MAX_SHOWN;
let maxLines = 1; // of a request
let maxBytes = 1; // of a request
let maxCharacters = 1; // of a line
let key = "";
let asking = new AbortController();
let timer;
let lines = []; // of the text
let current; // the line whose alternatives are listed

// ------------------------------------------------------------------------------------ languages

function setLanguage(parts, code) {
  for (const part of parts) {
    part.lang = languageTag(code);
    part.dir = direction(code);
  }
}

function model() {
  return models[element.model.selectedIndex];
}

function choose() {
  const { source: from, target: to } = model();
  element["source-language"].textContent = languageName(from);
  element["target-language"].textContent = languageName(to);
  setLanguage([source, mirror], from);
  setLanguage([target, element.alternatives, element.announcement], to);
  lines = [];
  translate();
}

async function loadModels() {
  const listed = await (await fetch("api/models").catch(failSilent)).json();
  models = listed.models;
  maxShown = Math.min(MAX_SHOWN, listed.max_candidates);
  maxLines = listed.max_texts;
  maxBytes = listed.max_body;
  maxCharacters = listed.max_characters;
  element.model.replaceChildren(
    ...models.map(({ name, source: from, target: to }) => {
      return new Option(`${languageName(from)} → ${languageName(to)} · ${name}`);
    }),
  );
  element.model.value = restored("model");
  if (!model()) element.model.selectedIndex = 0; // None is kept, or it is gone.
  element.model.disabled = models.length === 1;
  choose();
}

function begin() {
  loadModels().catch((error) => tell(error.message, true));
}

// ---------------------------------------------------------------------------------------- lines

/** A line of the text, with its part of each sheet; it has an answer once it is translated. */
function newLine(text) {
  const [words, translated] = [document.createElement("span"), document.createElement("span")];
  words.textContent = text;
  const limit = `more than ${maxCharacters.toLocaleString("en")} characters`;
  const excess = [...text].length > maxCharacters ? limit : undefined;
  const sheets = { source: words, target: translated };
  return { text, excess, prefix: "", answer: undefined, shown: undefined, ...sheets };
}

/** Divide the text into lines. Those that were there before keep their translations. */
function divide() {
  const before = [...lines];
  lines = source.value.split("\n").map((text) => {
    const at = before.findIndex((line) => line.text === text);
    return at < 0 ? newLine(text) : before.splice(at, 1)[0];
  });
  for (const [sheet, side] of [[mirror, "source"], [target, "target"]]) {
    sheet.replaceChildren(...lines.flatMap((line) => ["\n", line[side]]).slice(1));
  }
  const isTyped = document.activeElement === source || !lines.includes(current);
  attend(isTyped ? lineAtCaret() : current);
}

function lineAtCaret() {
  return lines[source.value.slice(0, source.selectionStart).split("\n").length - 1];
}

function lineOf(unit) {
  return lines.find((line) => line.source.contains(unit) || line.target.contains(unit));
}

// --------------------------------------------------------------------------------------- asking

/** Translate the lines that have no answer, each with a translation that begins with its prefix. */
async function translate() {
  clearTimeout(timer);
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  divide();
  const asked = lines.filter((line) => line.text.trim() && !line.excess && !line.answer);
  target.removeAttribute("aria-busy");
  if (!asked.length) return;
  element.announcement.textContent = "";
  for (const line of asked) line.target.classList.add("draft");
  target.setAttribute("aria-busy", "true");
  try {
    for (let start = 0; start < asked.length; start += maxLines) {
      await request(asked.slice(start, start + maxLines), signal);
    }
  } catch (error) {
    if (signal.aborted) return;
    tell(error.message, true);
  }
  target.removeAttribute("aria-busy");
}

/** Translate as many lines as a request may have; by halves where their bytes are too many. */
async function request(asked, signal) {
  const body = new TextEncoder().encode(JSON.stringify(fieldsOf(asked)));
  if (body.length > maxBytes && asked.length > 1) {
    const half = Math.ceil(asked.length / 2);
    await request(asked.slice(0, half), signal);
    await request(asked.slice(half), signal);
    return;
  }
  if (body.length > maxBytes) {
    const [line] = asked;
    line.excess = "too many bytes";
    line.target.classList.remove("draft");
    attend(current);
    return;
  }
  for await (const [name, content] of events(body, signal)) {
    if (name === "draft") asked[content.index].target.textContent = content.text;
    else if (name === "error") throw new Error(content.error);
    else content.texts.forEach((answer, index) => show(asked[index], answer));
  }
  if (asked.some((line) => !line.answer)) throw new Error(SILENT);
}

function fieldsOf(asked) {
  const { name, source: from, target: to, can_align: alignments, decoding } = model();
  const nbest = decoding.kind === "beam" ? Math.min(maxShown, decoding.beam_size) : 1;
  const chosen = { model: name, source: from, target: to };
  const wanted = { nbest, alignments, defects: true, stream: true };
  const prefixes = asked.map((line) => line.prefix);
  const text = asked.map((line) => line.text);
  return { ...chosen, text, ...wanted, ...(prefixes.some(Boolean) && { prefixes }) };
}

/** Yield the events of the answer to a body, each with its name and content. */
async function* events(body, signal) {
  const headers = { "Content-Type": "application/json" };
  // A header has bytes, each of which is a character here: those of UTF-8.
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  if (key) headers.Authorization = `Bearer ${bytes}`;
  const response = await fetch("api/translate", {
    method: "POST", headers, body, signal,
  }).catch(failSilent);
  if (!response.ok) {
    element.login.hidden &&= response.status !== 401;
    // A proxy in front of the server answers in words of its own.
    const { error } = await response.json().catch(() => ({}));
    throw new Error(error ?? `${SILENT} (${response.status})`);
  }
  if (element.login.contains(document.activeElement)) source.focus();
  element.login.hidden = true;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(failSilent);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

/** Say so in the same words in all browsers. */
function failSilent() {
  throw new Error(SILENT);
}

function tell(words, isError = false) {
  status.textContent = words;
  status.classList.toggle("error", isError);
}

// -------------------------------------------------------------------------------------- showing

function show(line, answer) {
  line.answer = answer;
  line.target.classList.remove("draft");
  showTranslation(line, answer.translations[0]);
  // A screen reader speaks the line at hand, once it is whole.
  if (line === current) element.announcement.textContent = line.shown.text;
}

function showTranslation(line, translation) {
  line.shown = translation;
  writeUnits(line.source, line.text, line.answer.source_words ?? []);
  writeUnits(line.target, translation.text, translation.words ?? wordsOf(translation.text));
  const kept = [...line.prefix].length;
  for (const unit of units(line.target)) {
    unit.tabIndex = -1;
    unit.setAttribute("role", "button");
    unit.classList.toggle("kept", Number(unit.dataset.start) < kept);
  }
  // One word of the translation is reached by Tab, the others by arrows.
  const first = target.querySelector(".unit");
  if (first && !target.querySelector("[tabindex='0']")) first.tabIndex = 0;
  if (line === current) attend(line);
}

/** List the alternatives of a line, and what is to be said of its translation. */
function attend(line) {
  current = line;
  const translations = line?.answer?.translations ?? [];
  element.others.hidden = translations.length < 2;
  element.alternatives.replaceChildren(
    ...translations.map((translation) => alternative(line, translation)),
  );
  const long = wordsAboutLong();
  tell([long, line?.shown && wordsAbout(line.shown)].filter(Boolean).join("\n"), long !== "");
}

/** Name the lines that are too long to be translated. */
function wordsAboutLong() {
  const excesses = new Set(lines.flatMap((line) => line.excess ?? []));
  return [...excesses].map((excess) => {
    const numbers = lines.flatMap((line, index) => (line.excess === excess ? [index + 1] : []));
    return `Lines of ${excess} are not translated; split them: ${numbers.join(", ")}`;
  }).join("\n");
}

function alternative(line, translation) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const words = document.createElement("bdi");
  const score = document.createElement("span");
  words.textContent = translation.text || "(empty)";
  score.textContent = translation.score.toFixed(2).replace("-", "−");
  score.dir = "ltr";
  button.type = "button";
  button.setAttribute("aria-pressed", String(translation === line.shown));
  button.append(words, score);
  button.addEventListener("click", () => {
    showTranslation(line, translation);
    element.alternatives.querySelector("[aria-pressed='true']").focus();
  });
  item.append(button);
  return item;
}

/** Say how good a translation is expected to be, and what is wrong with it. */
function wordsAbout({ confidence, defects }) {
  const parts = defects.map(({ kind, words }) => (words.length ? `${kind}: ${words.join(", ")}` : kind));
  return [
    confidence !== undefined && `Confidence ${confidence.toFixed(2)}`,
    parts.length && `Check this translation: ${parts.join("; ")}`,
  ].filter(Boolean).join(". ");
}

/** Where words are, if a model cannot align: characters, as the API counts them. */
function wordsOf(text) {
  return [...text.matchAll(/\S+/gu)].map((match) => {
    const start = [...text.slice(0, match.index)].length;
    return [start, start + [...match[0]].length];
  });
}

/** Write a text with an element for each unit; spans count characters, not UTF-16 code units. */
function writeUnits(sheet, text, spans) {
  const characters = [...text];
  const parts = [];
  let written = 0;
  spans.forEach(([start, end], index) => {
    if (start >= end || start < written) return;
    const unit = document.createElement("span");
    unit.className = "unit";
    Object.assign(unit.dataset, { index, start, end });
    unit.textContent = characters.slice(start, end).join("");
    parts.push(characters.slice(written, start).join(""), unit);
    written = end;
  });
  sheet.replaceChildren(...parts, characters.slice(written).join(""));
}

function units(sheet) {
  return [...sheet.querySelectorAll(".unit")];
}

// ------------------------------------------------------------------------------------ alignment

/** Light up a word and its partners on the other sheet; without a word, none. */
function light(unit) {
  const lit = document.querySelectorAll(".unit.word, .unit.partner");
  for (const part of lit) part.classList.remove("word", "partner");
  if (!unit) return;
  const line = lineOf(unit);
  const [own, other] = line.source.contains(unit) ? [0, line.target] : [1, line.source];
  const pairs = line.shown?.alignments ?? [];
  const partners = new Set(
    pairs.filter((pair) => pair[own] === Number(unit.dataset.index)).map((pair) => pair[1 - own]),
  );
  unit.classList.add("word");
  for (const part of units(other)) {
    part.classList.toggle("partner", partners.has(Number(part.dataset.index)));
  }
}

function unitAt(event) {
  const isAt = (box) => {
    return box.left <= event.clientX && event.clientX <= box.right
      && box.top <= event.clientY && event.clientY <= box.bottom;
  };
  // Of the line at the pointer alone: a text may have thousands of words.
  const line = lines.find(({ source: part }) => isAt(part.getBoundingClientRect()));
  return line && units(line.source).find((unit) => [...unit.getClientRects()].some(isAt));
}

function unitAtCaret() {
  const before = source.value.slice(0, source.selectionStart);
  const caret = [...before.slice(before.lastIndexOf("\n") + 1)].length;
  return units(current?.source ?? mirror).find((unit) => {
    return unit.dataset.start <= caret && caret <= unit.dataset.end;
  });
}

source.addEventListener("mousemove", (event) => light(unitAt(event)));
source.addEventListener("mouseleave", () => light());
document.addEventListener("selectionchange", () => {
  if (document.activeElement !== source) return;
  if (lineAtCaret() !== current) attend(lineAtCaret());
  light(unitAtCaret());
});
source.addEventListener("blur", () => light());
for (const name of ["mouseover", "focusin"]) {
  target.addEventListener(name, (event) => light(event.target.closest(".unit")));
}
for (const name of ["mouseleave", "focusout"]) target.addEventListener(name, () => light());

// --------------------------------------------------------------------------------------- change

/** Let a word be typed anew; what stands before it stays, what follows is completed. */
function change(unit) {
  const line = lineOf(unit);
  if (!line.shown) return; // Another translation of it is on its way.
  attend(line);
  const input = document.createElement("input");
  const word = unit.textContent;
  input.value = word;
  input.size = Math.max(3, [...word].length);
  input.setAttribute("aria-label", `Instead of ${word}`);
  unit.replaceWith(input);
  input.select();
  input.focus();
  let isOpen = true;
  const end = (isDone) => {
    if (!isOpen) return;
    isOpen = false;
    const hasFocus = document.activeElement === input;
    const start = [...line.shown.text].slice(0, Number(unit.dataset.start)).join("");
    if (isDone && input.value.trim() && input.value !== word) {
      unit.textContent = input.value.trim();
      Object.assign(line, { prefix: start + unit.textContent, answer: undefined, shown: undefined });
    }
    input.replaceWith(unit);
    if (hasFocus) unit.focus();
    if (!line.shown) translate().then(() => focusAfterKept(line));
  };
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") end(true);
    else if (event.key === "Escape") end(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  input.addEventListener("blur", () => end(true));
  light();
}

function focusAfterKept(line) {
  if (document.activeElement !== document.body) return;
  const all = units(line.target);
  focusUnit(all.find((unit) => !unit.classList.contains("kept")) ?? all.at(-1));
}

function focusUnit(unit) {
  if (!unit) return;
  for (const part of units(target)) part.tabIndex = part === unit ? 0 : -1;
  unit.focus();
}

target.addEventListener("click", (event) => {
  const unit = event.target.closest(".unit");
  if (unit) change(unit);
});
target.addEventListener("keydown", (event) => {
  const unit = event.target.closest(".unit");
  if (!unit) return;
  const all = units(target);
  const forward = target.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
  const backward = target.dir === "rtl" ? "ArrowRight" : "ArrowLeft";
  const at = all.indexOf(unit);
  const next = { [forward]: all[at + 1], [backward]: all[at - 1], Home: all[0], End: all.at(-1) };
  if (event.key in next) focusUnit(next[event.key]);
  else if (event.key === "Enter" || event.key === " ") change(unit);
  else return;
  event.preventDefault();
});

// --------------------------------------------------------------------------------------- typing

function grow() {
  source.style.height = "auto";
  source.style.height = `${source.scrollHeight}px`;
}

/** Keep what is typed or chosen for this tab, until it is closed. */
function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The browser has no room, or is told to keep nothing.
  }
}

function restored(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return ""; // It is told to keep nothing.
  }
}

source.addEventListener("input", () => {
  keep("text", source.value);
  grow();
  mirror.replaceChildren();
  clearTimeout(timer);
  timer = setTimeout(models.length ? translate : begin, PAUSE);
});
addEventListener("resize", grow);
element.model.addEventListener("change", () => {
  keep("model", element.model.value);
  choose();
});
element.login.addEventListener("submit", (event) => {
  event.preventDefault();
  key = element.key.value;
  translate();
});

source.value = restored("text");
grow();
begin();
