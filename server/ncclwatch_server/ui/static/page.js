// What every page does: keeps its parts true, copies, and answers to keys. Without it the pages are right, and still.

const html = globalThis.trustedTypes
  ? trustedTypes.createPolicy("ncclwatch", { createHTML: (text) => text })
  : { createHTML: (text) => text };

const line = document.getElementById("line");
const main = document.getElementById("main");

function say(sentence) {
  line.textContent = sentence;
  line.hidden = !sentence;
}

// The server has escaped all of it. What a person has opened stays open, and what is selected stays selected.
function replacePart(name, text) {
  const part = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
  if (!part || part.dataset.text === text) return;
  const selection = getSelection();
  if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return;
  const open = [...part.querySelectorAll("details")].map((each) => each.open);
  const active = part.contains(document.activeElement) ? focusPath(part) : -1;
  part.dataset.text = text;
  part.innerHTML = html.createHTML(text);
  const details = part.querySelectorAll("details");
  if (details.length === open.length) details.forEach((each, number) => (each.open = open[number]));
  if (active >= 0) focusables(part)[active]?.focus();
}

const focusables = (part) => [...part.querySelectorAll("a, button, summary, textarea")];
const focusPath = (part) => focusables(part).indexOf(document.activeElement);

function follow(url) {
  const source = new EventSource(url);
  source.addEventListener("open", () => say(""));
  source.addEventListener("error", () => say("the server does not answer; what you see is old"));
  source.addEventListener("parts", (event) => {
    for (const [name, text] of Object.entries(JSON.parse(event.data))) replacePart(name, text);
    document.dispatchEvent(new CustomEvent("parts"));
  });
  source.addEventListener("column", (event) => {
    document.dispatchEvent(new CustomEvent("column", { detail: JSON.parse(event.data) }));
  });
  addEventListener("pagehide", () => source.close());
}

async function copy(id) {
  const text = document.getElementById(id);
  if (!text) return;
  let done = false;
  if (navigator.clipboard && isSecureContext) {
    done = await navigator.clipboard.writeText(text.value).then(() => true, () => false);
  }
  if (!done) {
    // On plain http, as on a head node, a browser lets a page copy what is selected, and nothing else.
    text.focus();
    text.select();
    done = document.execCommand("copy");
  }
  text.classList.toggle("seen", !done);
  tell(done ? "copied" : "press Ctrl+C to copy");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button.dataset.copy);
});

// What changes or asks something. The buttons are hidden where no script can press them.
function showActs() {
  for (const button of document.querySelectorAll("button.act")) button.hidden = false;
}

// The place for an answer is part of what is replaced while the page is open, also before the answer has come.
let answer = "";

function tell(text) {
  answer = text;
  const told = document.getElementById("copied") ?? line;
  told.textContent = text;
  told.hidden = !text;
}

function tellAgain() {
  const told = document.getElementById("copied");
  if (told && answer) told.textContent = answer;
}

async function act(button) {
  button.disabled = true;
  tell(`${button.dataset.busy} …`);
  try {
    const headers = { "Content-Type": "application/json", Accept: "application/json, */*;q=0.1" };
    const reply = await fetch(button.dataset.post, { method: "POST", headers, body: button.dataset.body });
    if (reply.ok && button.dataset.save) {
      save(await reply.blob(), button.dataset.save);
      tell(button.dataset.done);
      return;
    }
    const found = await reply.json();
    if (!reply.ok) {
      const why = typeof found.detail === "string" ? found.detail : `the server answered ${reply.status}`;
      tell(reply.status === 401 || reply.status === 403 ? `not allowed: ${why}` : why);
      return;
    }
    tell(button.dataset.done ?? "");
    if (button.dataset.show) showStacks(button.dataset.show, found);
  } catch {
    tell("the server does not answer");
  } finally {
    button.disabled = false;
  }
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function showStacks(title, found) {
  const places = found.places.map((each) => `${ranksText(each.ranks)}  ${each.words}`);
  const unseen = found.unseen.map((each) => `${ranksText(each.ranks)}  no stack: ${each.why}`);
  document.getElementById("answer-title").textContent = title;
  document.getElementById("answer-text").textContent =
    [...found.notes, ...places, ...unseen, "", ...found.tree].join("\n");
  document.getElementById("answer").showModal();
}

function ranksText(ranks) {
  const runs = [];
  for (const rank of ranks) {
    const last = runs.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return `rank ${runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",")}`;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-post]");
  if (button) act(button);
});
document.addEventListener("parts", showActs);
document.addEventListener("parts", tellAgain);
showActs();

const keys = {
  j: () => location.assign("/jobs"),
  i: () => location.assign("/incidents"),
  s: () => location.assign("/settings"),
  c: () => copy("slack"),
  e: () => {
    const all = [...document.querySelectorAll("main details")];
    const open = !all.every((each) => each.open);
    for (const each of all) each.open = open;
  },
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest?.("input, select, textarea, dialog")) return;
  keys[event.key]?.();
});

if (main.dataset.live) follow(main.dataset.live);
