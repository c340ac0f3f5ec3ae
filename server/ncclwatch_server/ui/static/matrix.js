// The picture of a job: a column for each second, a row for each rank, or for several, of which the worst is shown.
// All states are kept, one byte each, so that looking closer asks nobody. States are numbered by how bad they are.

const COLUMNS_MAX = 600;
const ROW_PIXELS_MAX = 28; // of one rank
const HEIGHT_MAX = 480;
const NAMES = ["absent", "ended", "moving", "working", "waiting", "long-waiting", "silent", "frozen", "lost", "blamed"];

const picture = document.getElementById("picture");
const canvas = document.getElementById("matrix");
const cursor = document.getElementById("cursor");
const tip = document.getElementById("tip");
const world = Number(picture.dataset.ranks);
const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true }); // it is written by the byte

const states = new Uint8Array(world * COLUMNS_MAX); // column after column, a ring
const times = new Float64Array(COLUMNS_MAX);
let count = 0; // columns there are
let newest = -1; // number of the newest
let from = 0; // first rank that is shown
let until = world; // and the one behind the last
let rows = 1; // of pixels, each for one rank or several
let columnPixels = 2;
let at = null; // {row, column}: what is pointed at
let colours = new Uint32Array(10);
let painted = { first: 0, ms: 0 };

const slot = (number) => ((number % COLUMNS_MAX) + COLUMNS_MAX) % COLUMNS_MAX;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  colours = new Uint32Array(NAMES.map((name) => {
    probe.fillStyle = style.getPropertyValue(`--${name}`).trim();
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  }));
}

function measure() {
  const width = Math.max(60, canvas.clientWidth);
  const shown = until - from;
  const rowPixels = Math.max(1, Math.min(ROW_PIXELS_MAX, Math.floor(HEIGHT_MAX / shown)));
  const height = Math.min(HEIGHT_MAX, shown * rowPixels);
  canvas.style.height = `${height}px`;
  rows = Math.min(shown, height);
  columnPixels = Math.max(1, Math.floor((2 * width) / COLUMNS_MAX)); // as many seconds as fit at two pixels each
  const columns = Math.ceil(width / columnPixels);
  canvas.width = columns * columnPixels;
  canvas.height = rows;
}

const firstRank = (row) => from + Math.floor((row * (until - from)) / rows);

// One number for each row: the worst state of its ranks.
function fold(number) {
  const column = slot(number) * world;
  const folded = new Uint8Array(rows);
  const shown = until - from;
  if (rows === shown) return states.subarray(column + from, column + until);
  for (let row = 0; row < rows; row++) {
    const end = column + firstRank(row + 1);
    let worst = 0;
    for (let rank = column + firstRank(row); rank < end; rank++) if (states[rank] > worst) worst = states[rank];
    folded[row] = worst;
  }
  return folded;
}

function paint() {
  const began = performance.now();
  measure();
  const image = context.createImageData(canvas.width, rows);
  const pixels = new Uint32Array(image.data.buffer).fill(colours[0]);
  const columns = Math.min(count, canvas.width / columnPixels);
  for (let back = 0; back < columns; back++) {
    const folded = fold(newest - back);
    const left = canvas.width - (back + 1) * columnPixels;
    for (let row = 0; row < rows; row++) {
      const place = row * canvas.width + left;
      pixels.fill(colours[folded[row]], place, place + columnPixels);
    }
  }
  context.putImageData(image, 0, 0);
  tell();
  painted.ms = performance.now() - began;
}

// A new column moves the picture by one and paints only itself.
function paintNewest() {
  const began = performance.now();
  context.drawImage(canvas, -columnPixels, 0);
  const image = context.createImageData(columnPixels, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const folded = fold(newest);
  for (let row = 0; row < rows; row++) pixels.fill(colours[folded[row]], row * columnPixels, (row + 1) * columnPixels);
  context.putImageData(image, canvas.width - columnPixels, 0);
  if (at) point(at);
  picture.dataset.updateMs = (performance.now() - began).toFixed(1);
}

function tell() {
  const shown = until - from;
  const each = Math.ceil(shown / rows);
  const folded = each > 1 ? `, ${each} to a row, the worst shown` : "";
  document.getElementById("range").textContent =
    `ranks ${from.toLocaleString("en")} to ${(until - 1).toLocaleString("en")}${folded}`;
}

function add(number, time, bytes) {
  if (number <= newest) return;
  if (number !== newest + 1 && newest >= 0) count = Math.min(count, COLUMNS_MAX - 1); // some were missed: they are left out
  newest = newest < 0 ? number : newest + 1;
  states.set(bytes, slot(newest) * world);
  times[slot(newest)] = time;
  count = Math.min(COLUMNS_MAX, count + 1);
}

async function load() {
  const answer = await fetch(picture.dataset.source, { credentials: "same-origin" });
  if (!answer.ok) return;
  const buffer = await answer.arrayBuffer();
  const view = new DataView(buffer);
  const columns = view.getUint32(8, true);
  const first = view.getUint32(12, true);
  let place = 16 + columns * 8;
  newest = -1;
  for (let column = 0; column < columns; column++, place += world) {
    add(first + column, view.getFloat64(16 + column * 8, true), new Uint8Array(buffer, place, world));
  }
}

function decode(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let place = 0; place < plain.length; place++) bytes[place] = plain.charCodeAt(place);
  return bytes;
}

const words = (state) => document.querySelector(`#legend [data-state="${state}"]`)?.textContent ?? "not seen yet";
const clock = (time) => new Date(time * 1000).toISOString().slice(11, 19);

function point(place) {
  const columns = canvas.width / columnPixels;
  at = { row: Math.max(0, Math.min(rows - 1, place.row)), column: Math.max(0, Math.min(columns - 1, place.column)) };
  const back = columns - 1 - at.column;
  const wide = canvas.clientWidth / columns;
  const high = canvas.clientHeight / rows;
  const first = firstRank(at.row);
  const last = firstRank(at.row + 1) - 1;
  cursor.hidden = tip.hidden = false;
  Object.assign(cursor.style, {
    left: `${at.column * wide - 2}px`, top: `${at.row * high - 2}px`,
    width: `${Math.max(4, wide + 4)}px`, height: `${Math.max(4, high + 4)}px`,
  });
  const who = first === last ? `rank ${first}` : `ranks ${first} to ${last}`;
  tip.textContent = back >= count ? `${who}\nnothing is kept of that moment` : describe(first, last, newest - back, who);
  const left = Math.min(at.column * wide + 14, canvas.clientWidth - tip.offsetWidth - 4);
  Object.assign(tip.style, { left: `${Math.max(0, left)}px`, top: `${at.row * high + high + 10}px` });
}

function describe(first, last, number, who) {
  const column = slot(number) * world;
  const counts = new Map();
  let worst = 0;
  for (let rank = first; rank <= last; rank++) {
    const state = states[column + rank];
    counts.set(state, (counts.get(state) ?? 0) + 1);
    worst = Math.max(worst, state);
  }
  const time = `${clock(times[slot(number)])} UTC`;
  if (counts.size === 1) return `${who} · ${time}\n${words(worst)}`;
  const parts = [...counts].sort((one, other) => other[0] - one[0]).map(([state, n]) => `${n} ${words(state)}`);
  const culprit = states.subarray(column + first, column + last + 1).indexOf(worst) + first;
  return `${who} · ${time}\n${parts.join(", ")}\nthe worst: rank ${culprit}`;
}

function leave() {
  at = null;
  cursor.hidden = tip.hidden = true;
}

function zoom(factor, middle) {
  const shown = Math.max(Math.min(8, world), Math.min(world, Math.round((until - from) * factor)));
  const share = (middle - from) / (until - from);
  from = Math.round(Math.max(0, Math.min(world - shown, middle - share * shown)));
  until = from + shown;
  paint();
  if (at) point(at);
}

const middleRank = () => (at ? firstRank(at.row) : (from + until) / 2);

function shift(ranks) {
  const shown = until - from;
  from = Math.max(0, Math.min(world - shown, from + ranks));
  until = from + shown;
  paint();
}

const moves = {
  ArrowLeft: (far) => point({ row: at.row, column: at.column - (far ? 30 : 1) }),
  ArrowRight: (far) => point({ row: at.row, column: at.column + (far ? 30 : 1) }),
  ArrowUp: (far) => (at.row === 0 ? shift(-1) : point({ row: at.row - (far ? 32 : 1), column: at.column })),
  ArrowDown: (far) => (at.row === rows - 1 ? shift(1) : point({ row: at.row + (far ? 32 : 1), column: at.column })),
  "+": () => zoom(0.5, middleRank()),
  "=": () => zoom(0.5, middleRank()),
  "-": () => zoom(2, middleRank()),
  0: () => zoom(Infinity, middleRank()),
  Escape: leave,
};

canvas.addEventListener("keydown", (event) => {
  const move = moves[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (!at && event.key !== "Escape") at = { row: Math.floor(rows / 2), column: canvas.width / columnPixels - 1 };
  move(event.shiftKey);
  if (at) point(at);
});
canvas.addEventListener("pointermove", (event) => {
  const box = canvas.getBoundingClientRect();
  point({
    row: Math.floor(((event.clientY - box.top) / box.height) * rows),
    column: Math.floor(((event.clientX - box.left) / box.width) * (canvas.width / columnPixels)),
  });
});
canvas.addEventListener("pointerleave", leave);
canvas.addEventListener("blur", leave);
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls as everywhere
  event.preventDefault();
  zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, middleRank());
}, { passive: false });
canvas.addEventListener("dblclick", () => zoom(0.25, middleRank()));
document.getElementById("tools").addEventListener("click", (event) => {
  const what = event.target.dataset.do;
  if (what) zoom({ in: 0.5, out: 2, all: Infinity }[what], middleRank());
});

const waiting = [];
let ready = false;
function take(column) {
  const before = newest;
  add(column.number, column.at, decode(column.states));
  if (newest === before) return;
  canvas.setAttribute("aria-label", column.summary);
  paintNewest();
}
document.addEventListener("column", (event) => (ready ? take(event.detail) : waiting.push(event.detail)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });
new ResizeObserver(() => { if (ready && Math.abs(canvas.clientWidth - canvas.width) > 1) paint(); }).observe(picture);

readColours();
await load();
document.getElementById("tools").hidden = world <= 8;
paint();
ready = true;
waiting.forEach(take);
picture.dataset.paintedMs = performance.now().toFixed(0);
picture.dataset.columns = String(count);
