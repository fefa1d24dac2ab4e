// What every page has: regions that keep themselves up to date, buttons that act.

import { describe, send } from "./api.js";

const BUSY_MS = 2000; // while something runs or waits
const IDLE_MS = 5000;

// Live regions: the page is asked for again, and what has changed is put in place.

const regions = [...document.querySelectorAll("[data-live]")];
const shown = new Map(regions.map((region) => [region, region.innerHTML]));

export async function fetchPage() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok || response.redirected) return null;
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

export async function refresh() {
  const fresh = await fetchPage();
  for (const region of regions) {
    const other = fresh?.getElementById(region.id);
    if (other && other.innerHTML !== shown.get(region)) replace(region, other);
  }
}

// What the user has opened, scrolled or focused stays so.
function replace(region, other) {
  const opened = [...region.querySelectorAll("details")].map((details) => details.open);
  const scrolled = [...region.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  const focused = region.contains(document.activeElement) ? describeFocus() : null;
  shown.set(region, other.innerHTML);
  for (const { name, value } of other.attributes) region.setAttribute(name, value);
  region.replaceChildren(...other.childNodes);
  region.querySelectorAll("details").forEach((details, i) => {
    details.open = opened[i] ?? details.open;
  });
  region.querySelectorAll(".scroll").forEach((box, i) => {
    box.scrollLeft = scrolled[i] ?? 0;
  });
  if (focused) region.querySelector(focused)?.focus();
}

function describeFocus() {
  const { tagName, attributes } = document.activeElement;
  for (const name of ["href", "aria-label", "name", "data-post", "aria-labelledby"]) {
    if (attributes[name]) return `${tagName}[${name}="${CSS.escape(attributes[name].value)}"]`;
  }
  return null;
}

function keepFresh() {
  const active = ".pill.running, .pill.queued, .pill.validating, .pill.preparing";
  const pause = document.querySelector(active) ? BUSY_MS : IDLE_MS;
  setTimeout(async () => {
    const inUse = document.querySelector("dialog[open], select:focus");
    if (!document.hidden && !inUse) await refresh().catch(() => {}); // the next one may succeed
    keepFresh();
  }, pause);
}

if (document.querySelector('[data-live="poll"]')) keepFresh();

// Buttons that post something, most of them after a question.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post]");
  if (!button || (button.dataset.confirm && !(await confirmed(button.dataset)))) return;
  const { method = "POST", post: path, body, done, then } = button.dataset;
  button.disabled = true;
  try {
    await send(method, path, body && JSON.parse(body));
    if (then) {
      location.assign(then);
    } else {
      await refresh();
      say(done ?? "Done.");
    }
  } catch (problem) {
    button.disabled = false;
    say(problem);
  }
});

function confirmed({ confirm, details }) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-question").textContent = confirm;
  document.getElementById("confirm-details").textContent = details ?? "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

let fading;

export function say(what) {
  const message = document.getElementById("message");
  const wrong = what instanceof Error;
  message.replaceChildren(wrong ? describe(what) : what);
  message.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => message.classList.remove("shown"), wrong ? 15000 : 4000);
}

// A link to a folded part of a page unfolds it.
function unfold() {
  const linked = document.getElementById(location.hash.slice(1));
  if (linked instanceof HTMLDetailsElement) linked.open = true;
}

unfold();
addEventListener("hashchange", unfold);
