// The page of `tformer serve`. Text from outside is only ever written as textContent.

const PAUSE = 300; // milliseconds without a key before a text is translated
const MAX_SHOWN = 5; // translations, unless the server has a lower limit
const RIGHT_TO_LEFT = new Set(["ar", "arc", "ckb", "dv", "fa", "he", "ks", "ps", "sd", "syr", "ug", "ur", "yi"]);

const element = Object.fromEntries(
  [...document.querySelectorAll("[id]")].map((part) => [part.id, part]),
);
const { source, mirror, target, status } = element;

let models = [];
let maxShown = MAX_SHOWN;
let key = "";
let asking = new AbortController();
let timer;
let answer; // what the last request was answered for a text
let shown; // its translation on the sheet

// ------------------------------------------------------------------------------------ languages

function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

function setLanguage(parts, code) {
  const direction = RIGHT_TO_LEFT.has(code.split(/[-_]/)[0].toLowerCase()) ? "rtl" : "ltr";
  for (const part of parts) {
    part.lang = code;
    part.dir = direction;
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
  setLanguage([target, element.alternatives], to);
  translate();
}

async function loadModels() {
  const listed = await (await fetch("api/models")).json();
  models = listed.models;
  maxShown = Math.min(MAX_SHOWN, listed.max_candidates);
  element.model.replaceChildren(
    ...models.map(({ name, source: from, target: to }) => {
      return new Option(`${languageName(from)} → ${languageName(to)} · ${name}`);
    }),
  );
  element.model.disabled = models.length === 1;
  choose();
}

// --------------------------------------------------------------------------------------- asking

/** Translate the text, with a translation that begins with a prefix. */
async function translate(prefix = "") {
  clearTimeout(timer);
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const text = source.value;
  forget();
  tell("");
  if (!text.trim()) {
    target.replaceChildren();
    return;
  }
  target.classList.add("draft");
  target.setAttribute("aria-busy", "true");
  try {
    for await (const [name, content] of events(fieldsOf(text, prefix), signal)) {
      if (name === "draft") target.textContent = content.text;
      else if (name === "error") tell(content.error, true);
      else show(content.texts[0], prefix);
    }
  } catch (error) {
    if (signal.aborted) return;
    tell(error.message, true);
  }
  target.classList.remove("draft");
  target.removeAttribute("aria-busy");
}

function fieldsOf(text, prefix) {
  const { name, source: from, target: to, can_align: alignments, decoding } = model();
  const nbest = decoding.kind === "beam" ? Math.min(maxShown, decoding.beam_size) : 1;
  const chosen = { model: name, source: from, target: to };
  const wanted = { nbest, alignments, defects: true, stream: true };
  return { ...chosen, text, ...wanted, ...(prefix && { prefixes: [prefix] }) };
}

/** Yield the events of an answer, each with its name and content. */
async function* events(fields, signal) {
  const headers = { "Content-Type": "application/json" };
  // A header has bytes, each of which is a character here: those of UTF-8.
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  if (key) headers.Authorization = `Bearer ${bytes}`;
  const response = await fetch("api/translate", {
    method: "POST", headers, body: JSON.stringify(fields), signal,
  });
  if (!response.ok) {
    element.login.hidden &&= response.status !== 401;
    throw new Error((await response.json()).error);
  }
  element.login.hidden = true;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

function tell(words, isError = false) {
  status.textContent = words;
  status.classList.toggle("error", isError);
}

// -------------------------------------------------------------------------------------- showing

function forget() {
  answer = shown = undefined;
  mirror.replaceChildren();
  element.others.hidden = true;
}

function show(text, prefix) {
  answer = text;
  const several = text.translations.length > 1;
  element.others.hidden = !several;
  element.alternatives.replaceChildren(
    ...text.translations.map((translation) => alternative(translation)),
  );
  showTranslation(text.translations[0], prefix);
}

function alternative(translation) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const words = document.createElement("bdi");
  const score = document.createElement("span");
  words.textContent = translation.text || "(empty)";
  score.textContent = translation.score.toFixed(2).replace("-", "−");
  score.dir = "ltr";
  button.type = "button";
  button.append(words, score);
  button.addEventListener("click", () => showTranslation(translation));
  item.append(button);
  return item;
}

function showTranslation(translation, prefix = "") {
  shown = translation;
  const buttons = element.alternatives.querySelectorAll("button");
  buttons.forEach((button, index) => {
    button.setAttribute("aria-pressed", String(answer.translations[index] === translation));
  });
  tell(wordsAbout(translation));
  writeUnits(mirror, source.value, answer.source_words ?? []);
  writeUnits(target, translation.text, translation.words ?? wordsOf(translation.text));
  const kept = [...prefix].length;
  units(target).forEach((unit, index) => {
    unit.tabIndex = index ? -1 : 0;
    unit.setAttribute("role", "button");
    unit.classList.toggle("kept", Number(unit.dataset.start) < kept);
  });
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

/** Light up a word of one sheet and its partners of the other; without a word, none. */
function light(sheet, unit) {
  const own = sheet === mirror ? 0 : 1;
  const pairs = shown?.alignments ?? [];
  const partners = new Set(
    pairs.filter((pair) => unit && pair[own] === Number(unit.dataset.index)).map((pair) => pair[1 - own]),
  );
  const other = sheet === mirror ? target : mirror;
  for (const part of units(sheet)) part.classList.toggle("word", part === unit);
  for (const part of units(other)) {
    part.classList.remove("word");
    part.classList.toggle("partner", partners.has(Number(part.dataset.index)));
  }
  for (const part of units(sheet)) part.classList.remove("partner");
}

function unitAt(event) {
  return units(mirror).find((unit) => [...unit.getClientRects()].some((box) => {
    return box.left <= event.clientX && event.clientX <= box.right
      && box.top <= event.clientY && event.clientY <= box.bottom;
  }));
}

function unitAtCaret() {
  const caret = [...source.value.slice(0, source.selectionStart)].length;
  return units(mirror).find((unit) => unit.dataset.start <= caret && caret <= unit.dataset.end);
}

source.addEventListener("mousemove", (event) => light(mirror, unitAt(event)));
source.addEventListener("mouseleave", () => light(mirror));
document.addEventListener("selectionchange", () => {
  if (document.activeElement === source) light(mirror, unitAtCaret());
});
source.addEventListener("blur", () => light(mirror));
for (const name of ["mouseover", "focusin"]) {
  target.addEventListener(name, (event) => light(target, event.target.closest(".unit")));
}
for (const name of ["mouseleave", "focusout"]) target.addEventListener(name, () => light(target));

// --------------------------------------------------------------------------------------- change

/** Let a word be typed anew; what stands before it stays, what follows is completed. */
function change(unit) {
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
    const start = [...shown.text].slice(0, Number(unit.dataset.start)).join("");
    if (isDone && input.value.trim() && input.value !== word) {
      translate(start + input.value.trim()).then(focusAfterKept);
    } else {
      input.replaceWith(unit);
      unit.focus();
    }
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
  light(target);
}

function focusAfterKept() {
  if (document.activeElement !== document.body) return;
  const all = units(target);
  focusUnit(all.find((unit) => !unit.classList.contains("kept")) ?? all.at(-1));
}

function focusUnit(unit) {
  if (!unit) return;
  for (const part of units(target)) part.tabIndex = part === unit ? 0 : -1;
  unit.focus();
}

target.addEventListener("click", (event) => {
  const unit = event.target.closest(".unit");
  if (unit && shown) change(unit);
});
target.addEventListener("keydown", (event) => {
  const unit = event.target.closest(".unit");
  if (!unit || !shown) return;
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

source.addEventListener("input", () => {
  grow();
  mirror.replaceChildren();
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
});
addEventListener("resize", grow);
element.model.addEventListener("change", choose);
element.login.addEventListener("submit", (event) => {
  event.preventDefault();
  key = element.key.value;
  translate();
});

loadModels().catch((error) => tell(error.message, true));
