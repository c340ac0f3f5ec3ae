// The picture of a job: a column for each second, a row for each rank, or for several, of which the worst is shown.
// All states are kept, one byte each, so that looking closer asks nobody. States are numbered by how bad they are.

const COLUMNS_MAX = 600;
const ROW_PIXELS_MAX = 28; // of one rank
const HEIGHT_MAX = 480;
const COLUMN_PIXELS_MAX = 48; // of one second
const LABEL_PIXELS = 15; // the least between two labels of rows
const TICK_PIXELS = 90; // the least between two times
const SPANS = [60, 120, 240, 400, 600]; // seconds in the picture
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300];
const NAMES = [
  "absent", "ended", "moving", "working", "waiting", "long-waiting", "detached", "silent", "frozen", "lost", "blamed",
];

const picture = document.getElementById("picture");
const canvas = document.getElementById("matrix");
const axis = document.getElementById("axis");
const labels = document.getElementById("labels");
const orders = document.getElementById("orders");
const cursor = document.getElementById("cursor");
const tip = document.getElementById("tip");
const world = Number(picture.dataset.ranks);
const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true }); // it is written by the byte

const states = new Uint8Array(world * COLUMNS_MAX); // column after column, a ring
const times = new Float64Array(COLUMNS_MAX);
let count = 0; // columns there are
let newest = -1; // number of the newest
let from = 0; // first place that is shown: a rank, or its place in another order
let until = world; // and the one behind the last
let order = null; // rank at each place; null: they lie by number
let parts = []; // {label, first, count}: what lies together in that order
let edge = null; // number of the column at the right; null: always the newest
let wanted = 0; // pixels of a column that somebody asked for; 0: so that all fit
let held = false; // what is pointed at moves with the picture: a key or the address named it, no pointer rests on it
let pinned = null; // {rank, time}: what the address of the page names
let rows = 1; // of pixels, each for one rank or several
let columnPixels = 2;
let at = null; // {row, column}: what is pointed at
let colours = new Uint32Array(NAMES.length);
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

// A young job fills the picture as well as an old one: a column grows narrower when there are more.
function fitting(width) {
  const columns = SPANS.find((span) => count <= span) ?? COLUMNS_MAX;
  return Math.max(1, Math.floor(Math.max(60, width) / columns));
}

function measure() {
  const width = Math.max(60, canvas.clientWidth);
  const shown = until - from;
  const rowPixels = Math.max(1, Math.min(ROW_PIXELS_MAX, Math.floor(HEIGHT_MAX / shown)));
  const height = Math.min(HEIGHT_MAX, shown * rowPixels);
  canvas.style.height = `${height}px`;
  rows = Math.min(shown, height);
  columnPixels = wanted || fitting(width);
  const columns = Math.ceil(width / columnPixels);
  canvas.width = columns * columnPixels;
  canvas.height = rows;
  picture.dataset.columnPixels = String(columnPixels);
}

const firstPlace = (row) => from + Math.floor((row * (until - from)) / rows);
const rankAt = (place) => (order ? order[place] : place);
const right = () => edge ?? newest;

// One number for each row: the worst state of its ranks.
function fold(number) {
  const column = slot(number) * world;
  const folded = new Uint8Array(rows);
  const shown = until - from;
  if (rows === shown && !order) return states.subarray(column + from, column + until);
  for (let row = 0; row < rows; row++) {
    const end = firstPlace(row + 1);
    let worst = 0;
    for (let place = firstPlace(row); place < end; place++) {
      const state = states[column + (order ? order[place] : place)];
      if (state > worst) worst = state;
    }
    folded[row] = worst;
  }
  return folded;
}

function paint() {
  const began = performance.now();
  measure();
  const image = context.createImageData(canvas.width, rows);
  const pixels = new Uint32Array(image.data.buffer).fill(colours[0]);
  const columns = Math.min(right() - (newest - count), canvas.width / columnPixels);
  for (let back = 0; back < columns; back++) {
    const folded = fold(right() - back);
    const left = canvas.width - (back + 1) * columnPixels;
    for (let row = 0; row < rows; row++) {
      const place = row * canvas.width + left;
      pixels.fill(colours[folded[row]], place, place + columnPixels);
    }
  }
  context.putImageData(image, 0, 0);
  tell();
  drawTimes();
  drawLabels();
  painted.ms = performance.now() - began;
}

// A new column moves the picture by one and paints only itself; where somebody looks at the past, nothing moves.
function paintNewest() {
  const began = performance.now();
  if (edge !== null) {
    if (edge < newest - count + 1) edge = newest - count + 1;
    return;
  }
  if (!wanted && fitting(canvas.clientWidth) !== columnPixels) {
    paint();
    if (at) point(at);
    return;
  }
  context.drawImage(canvas, -columnPixels, 0);
  const image = context.createImageData(columnPixels, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const folded = fold(newest);
  for (let row = 0; row < rows; row++) pixels.fill(colours[folded[row]], row * columnPixels, (row + 1) * columnPixels);
  context.putImageData(image, canvas.width - columnPixels, 0);
  drawTimes();
  if (at) point({ row: at.row, column: at.column - (held ? 1 : 0) });
  picture.dataset.updateMs = (performance.now() - began).toFixed(1);
}

function tell() {
  const shown = until - from;
  const each = Math.ceil(shown / rows);
  const folded = each > 1 ? `, ${each} to a row, the worst shown` : "";
  const who = order
    ? `${shown.toLocaleString("en")} of ${world.toLocaleString("en")} ranks`
    : `ranks ${from.toLocaleString("en")} to ${(until - 1).toLocaleString("en")}`;
  document.getElementById("range").textContent = who + folded;
  document.getElementById("live").hidden = edge === null;
}

function label(text, place, className, more = {}) {
  const span = document.createElement("span");
  span.textContent = text;
  span.className = className;
  Object.assign(span.style, place);
  Object.assign(span, more);
  return span;
}

// Times below the picture: round ones, as many as can be read.
function drawTimes() {
  const columns = canvas.width / columnPixels;
  const wide = canvas.clientWidth / columns;
  const step = STEPS_S.find((each) => each * wide >= TICK_PIXELS) ?? 600;
  const found = [];
  const shown = Math.min(right() - (newest - count), columns);
  let last = canvas.clientWidth - TICK_PIXELS * 0.4;
  for (let back = 0; back < shown - 1; back++) {
    const [time, before] = [times[slot(right() - back)], times[slot(right() - back - 1)]];
    if (Math.floor(time / step) === Math.floor(before / step)) continue;
    const x = (columns - 1 - back) * wide;
    if (x > last - TICK_PIXELS * 0.8 || x < 24) continue; // columns that were missed bring two ticks together
    last = x;
    found.push(label(clock(Math.floor(time / step) * step), { left: `${x}px` }, "tick"));
  }
  if (count) found.push(label(clock(times[slot(right())]), { right: "0" }, "end"));
  axis.replaceChildren(...found);
}

// Beside the picture: some ranks, or the hosts or groups that lie together.
function drawLabels() {
  const high = canvas.clientHeight / (until - from);
  const found = [];
  let free = -Infinity;
  const put = (text, place, title) => {
    const y = (place - from) * high;
    if (place < from || place >= until || y < free) return;
    free = y + LABEL_PIXELS;
    found.push(label(text, { top: `${y}px` }, "row", { title }));
  };
  if (order) {
    for (const part of parts) put(part.label, Math.max(part.first, Math.min(from, part.first + part.count - 1)), part.title);
  } else {
    const each = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192].find((n) => n * high >= LABEL_PIXELS * 1.6);
    for (let rank = Math.ceil(from / (each ?? 16384)) * (each ?? 16384); rank < until; rank += each ?? 16384) {
      put(rank.toLocaleString("en"), rank, `rank ${rank}`);
    }
  }
  labels.replaceChildren(...found);
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
  const first = firstPlace(at.row);
  const last = firstPlace(at.row + 1) - 1;
  cursor.hidden = tip.hidden = false;
  Object.assign(cursor.style, {
    left: `${at.column * wide - 2}px`, top: `${at.row * high - 2}px`,
    width: `${Math.max(4, wide + 4)}px`, height: `${Math.max(4, high + 4)}px`,
  });
  const number = right() - back;
  tip.textContent = number <= newest - count ? `${who(first, last)}\nnothing is kept of that moment` : describe(first, last, number);
  const left = Math.min(at.column * wide + 14, canvas.clientWidth - tip.offsetWidth - 4);
  Object.assign(tip.style, { left: `${Math.max(0, left)}px`, top: `${at.row * high + high + 10}px` });
}

function who(first, last) {
  const part = parts.find((each) => first >= each.first && first < each.first + each.count);
  const beside = order && part ? ` · ${part.label}` : "";
  if (first === last) return `rank ${rankAt(first)}${beside}`;
  if (!order) return `ranks ${first} to ${last}`;
  return `${last - first + 1} ranks, ${rankAt(first)} to ${rankAt(last)}${beside}`;
}

function describe(first, last, number) {
  const column = slot(number) * world;
  const counts = new Map();
  let worst = 0;
  let culprit = rankAt(first);
  for (let place = first; place <= last; place++) {
    const state = states[column + rankAt(place)];
    counts.set(state, (counts.get(state) ?? 0) + 1);
    if (state > worst) [worst, culprit] = [state, rankAt(place)];
  }
  const head = `${who(first, last)} · ${clock(times[slot(number)])} UTC`;
  if (counts.size === 1) return `${head}\n${words(worst)}`;
  const found = [...counts].sort((one, other) => other[0] - one[0]).map(([state, n]) => `${n} ${words(state)}`);
  return `${head}\n${found.join(", ")}\nthe worst: rank ${culprit}`;
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

const middlePlace = () => (at ? firstPlace(at.row) : (from + until) / 2);

// Closer in time: what is pointed at comes to the middle; else the right edge stays.
function zoomTime(factor) {
  const shown = () => canvas.width / columnPixels;
  const middle = at ? right() - (shown() - 1 - at.column) : null;
  const round = factor > 1 ? Math.ceil : Math.floor;
  wanted = Math.max(1, Math.min(COLUMN_PIXELS_MAX, round(columnPixels * factor)));
  measure();
  if (middle !== null) setEdge(Math.round(middle + shown() / 2));
  paint();
  if (at) point(at);
}

function showAllTime() {
  wanted = 0;
  edge = null;
  measure();
  paint();
  if (at) point(at);
}

function setEdge(number) {
  edge = number >= newest ? null : Math.max(newest - count + Math.min(count, 10), number);
}

function pan(columns) {
  setEdge(right() + columns);
  paint();
  if (at) point(at);
}

// What is named in the address of the page: a rank, a moment, an order.
function readAddress() {
  const named = new URLSearchParams(location.hash.slice(1));
  const rank = Number(named.get("rank") || NaN);
  const time = Date.parse(named.get("t") ?? "") / 1000;
  return {
    rank: Number.isInteger(rank) && rank >= 0 && rank < world ? rank : null,
    time: Number.isFinite(time) ? time : null,
    order: named.get("order"),
  };
}

function writeAddress() {
  const named = new URLSearchParams();
  if (pinned) {
    named.set("rank", pinned.rank);
    if (pinned.time) named.set("t", new Date(pinned.time * 1000).toISOString());
  }
  named.set("order", orders.value);
  history.replaceState(null, "", `#${named}`);
}

function showPinned() {
  const { rank, time } = pinned;
  const place = order ? order.indexOf(rank) : rank;
  if (place < from || place >= until || until - from > rows) {
    const shown = Math.min(world, 32);
    from = Math.max(0, Math.min(world - shown, place - shown / 2));
    until = from + shown;
  }
  let number = newest;
  if (time !== null) {
    for (let back = 0; back < count; back++) {
      if (Math.abs(times[slot(newest - back)] - time) < Math.abs(times[slot(number)] - time)) number = newest - back;
    }
    measure();
    const half = Math.floor(canvas.width / columnPixels / 2);
    setEdge(number + half);
  }
  paint();
  held = true;
  const row = Math.floor(((place - from) * rows) / (until - from));
  point({ row, column: canvas.width / columnPixels - 1 - (right() - number) });
  if (time !== null && Math.abs(times[slot(number)] - time) > 5) tip.textContent += `\nnothing is kept of ${clock(time)} UTC`;
}

function pin() {
  if (!at) return;
  const number = right() - (canvas.width / columnPixels - 1 - at.column);
  pinned = { rank: rankAt(firstPlace(at.row)), time: number > newest - count ? times[slot(number)] : null };
  writeAddress();
}

// The orders of ranks, which the server knows: by host, by the dimensions of parallelism, the incident's ranks first.
const known = new Map([["rank", null]]);
async function loadOrders() {
  const answer = await fetch(picture.dataset.orders, { credentials: "same-origin" });
  if (!answer.ok) return;
  for (const each of await answer.json()) {
    if (each.order.length !== world || known.has(each.name)) continue;
    known.set(each.name, each);
    orders.append(new Option(each.name, each.name));
  }
  document.getElementById("order-choice").hidden = known.size < 2;
}

function setOrder(name) {
  const found = known.get(name) ?? null;
  orders.value = found ? name : "rank";
  order = found ? Uint32Array.from(found.order) : null;
  parts = [];
  let first = 0;
  for (const { label: text, count: size } of found?.parts ?? []) {
    parts.push({ label: text, first, count: size, title: `${text}, ${size} rank${size === 1 ? "" : "s"}` });
    first += size;
  }
  [from, until] = [0, world];
  leave();
  paint();
}

function shift(ranks) {
  const shown = until - from;
  from = Math.max(0, Math.min(world - shown, from + ranks));
  until = from + shown;
  paint();
}

const moves = {
  ArrowLeft: (far) => (at.column === 0 ? pan(far ? -30 : -1) : point({ row: at.row, column: at.column - (far ? 30 : 1) })),
  ArrowRight: (far) => (at.column >= canvas.width / columnPixels - 1
    ? pan(far ? 30 : 1)
    : point({ row: at.row, column: at.column + (far ? 30 : 1) })),
  ArrowUp: (far) => (at.row === 0 ? shift(-1) : point({ row: at.row - (far ? 32 : 1), column: at.column })),
  ArrowDown: (far) => (at.row === rows - 1 ? shift(1) : point({ row: at.row + (far ? 32 : 1), column: at.column })),
  "+": () => zoom(0.5, middlePlace()),
  "=": () => zoom(0.5, middlePlace()),
  "-": () => zoom(2, middlePlace()),
  0: () => { showAllTime(); zoom(Infinity, middlePlace()); },
  "]": () => zoomTime(2),
  "[": () => zoomTime(0.5),
  Enter: pin,
  Escape: leave,
};

canvas.addEventListener("keydown", (event) => {
  const move = moves[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (!at && event.key !== "Escape") at = { row: Math.floor(rows / 2), column: canvas.width / columnPixels - 1 };
  held = true;
  move(event.shiftKey);
  if (at) point(at);
});
let drag = null; // {x, edge}: the past is pulled into the picture
canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return; // a context menu names no moment
  drag = { x: event.clientX, edge: right(), moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => {
  if (drag && !drag.moved) pin();
  drag = null;
});
canvas.addEventListener("pointercancel", () => { drag = null; });
canvas.addEventListener("pointermove", (event) => {
  if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 4)) {
    drag.moved = true;
    const wide = canvas.clientWidth / (canvas.width / columnPixels);
    setEdge(drag.edge - Math.round((event.clientX - drag.x) / wide));
    leave();
    paint();
    return;
  }
  held = false;
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
  const closer = (event.deltaY || event.deltaX) < 0;
  if (event.shiftKey) zoomTime(closer ? 1.5 : 0.67);
  else zoom(closer ? 0.8 : 1.25, middlePlace());
}, { passive: false });
canvas.addEventListener("dblclick", () => zoom(0.25, middlePlace()));
document.getElementById("tools").addEventListener("click", (event) => {
  const deeds = {
    in: () => zoom(0.5, middlePlace()), out: () => zoom(2, middlePlace()),
    all: () => { showAllTime(); zoom(Infinity, middlePlace()); },
    closer: () => zoomTime(2), wider: () => zoomTime(0.5),
    earlier: () => pan(-Math.round(canvas.width / columnPixels / 3)),
    later: () => pan(Math.round(canvas.width / columnPixels / 3)),
    live: () => { edge = null; paint(); },
  };
  deeds[event.target.dataset.do]?.();
});

const waiting = [];
let ready = false;
function take(column) {
  const before = newest;
  add(column.number, column.at, decode(column.states));
  if (newest === before) return;
  canvas.setAttribute("aria-label", column.summary);
  paintNewest();
  picture.dataset.columns = String(count);
}
document.addEventListener("column", (event) => (ready ? take(event.detail) : waiting.push(event.detail)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });
new ResizeObserver(() => { if (ready && Math.abs(canvas.clientWidth - canvas.width) > 1) paint(); }).observe(picture);

orders.addEventListener("change", () => { setOrder(orders.value); writeAddress(); });
addEventListener("hashchange", () => {
  const named = readAddress();
  setOrder(named.order ?? orders.value);
  if (named.rank !== null) { pinned = named; showPinned(); }
});

readColours();
await load();
document.getElementById("tools").hidden = false;
paint();
ready = true;
waiting.forEach(take);
picture.dataset.paintedMs = performance.now().toFixed(0);
picture.dataset.columns = String(count);
await loadOrders();
const named = readAddress();
setOrder(named.order ?? (picture.dataset.hung ? "incident first" : "rank"));
if (named.rank !== null) { pinned = named; showPinned(); }
picture.dataset.ready = "1";
