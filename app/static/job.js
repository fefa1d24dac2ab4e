// A job while it runs: each event moves the bar, the steps and the loss curves.

import { refresh } from "./page.js";

const ENDED = ["succeeded", "rejected", "failed", "cancelled"];
const AGAIN_MS = 3000;
const WIDTH = 560;
const HEIGHT = 160;
const COLOURS = 7;

const region = document.getElementById("job");
if (region?.dataset.events) follow(region.dataset.events);

function follow(path) {
  const events = new EventSource(path); // which connects again by itself, while it can
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED) setTimeout(() => follow(path), AGAIN_MS);
  });
  events.addEventListener("job", async (event) => {
    const job = JSON.parse(event.data);
    if (ENDED.includes(job.status)) {
      events.close();
      await refresh();
      announceEnd(job);
    } else if (job.status !== region.dataset.status) {
      await refresh();
    } else {
      show(job);
    }
  });
  addEventListener("pagehide", () => events.close());
}

function show(job) {
  const bar = region.querySelector("progress");
  if (!bar) return;
  bar.value = job.progress;
  field("percent", percent(job.progress, 0));
  showStage(job.stage, job.metrics.candidate);
  showMetrics(job.metrics);
}

function showStage(stage, candidate) {
  let words = stage;
  for (const step of region.querySelectorAll("[data-stage]")) {
    const current = step.dataset.stage === stage;
    if (current) {
      words = step.textContent;
      if (!step.hasAttribute("aria-current")) field("spoken", words);
      step.setAttribute("aria-current", "step");
    } else {
      step.removeAttribute("aria-current");
    }
  }
  if (candidate) words = `${candidate}: ${words}`;
  field("stage", words ?? "waiting for a worker");
}

function showMetrics({ curves, loss, step, steps, trial, trials, val_accuracy: accuracy }) {
  const figure = region.querySelector("figure.live");
  if (!figure || !curves) return;
  figure.hidden = false;
  field("loss", loss?.toFixed(3) ?? "–");
  field("step", step === undefined ? "–" : `${step} of ${steps}`);
  field("trial", trials ? `learning rate ${trial} of ${trials}` : "");
  field("val_accuracy", accuracy === undefined ? "–" : percent(accuracy, 1));
  draw(figure, running(Object.entries(curves)), steps);
}

// Rates that were tried make way for the candidates that are refined at the best of them.
function running(curves) {
  const candidates = curves.filter(([name]) => !name.includes(", rate "));
  return candidates.length ? candidates : curves;
}

// Losses over steps: a line for each candidate, or for each learning rate that is tried.
function draw(figure, curves, steps) {
  const points = curves.flatMap(([, curve]) => curve);
  const far = Math.max(steps ?? 1, ...points.map(([at]) => at));
  const high = Math.max(1e-9, ...points.map(([, loss]) => loss));
  const place = ([at, loss]) =>
    `${((WIDTH * at) / far).toFixed(1)},${(HEIGHT - (HEIGHT - 10) * (loss / high)).toFixed(1)}`;
  const lines = curves.map(([, curve], i) =>
    shape("polyline", { class: `line s${i % COLOURS}`, points: curve.map(place).join(" ") }),
  );
  figure.querySelector("svg.chart").replaceChildren(...lines);
  figure.querySelector("[data-names]").replaceChildren(...curves.map(([name], i) => entry(name, i)));
}

function entry(name, i) {
  const swatch = shape("svg", { class: "swatch", width: 12, height: 12, "aria-hidden": "true" });
  swatch.append(shape("rect", { class: `s${i % COLOURS}`, width: 12, height: 12, rx: 3 }));
  const span = document.createElement("span");
  span.append(swatch, ` ${name}`);
  return span;
}

function shape(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function percent(share, digits) {
  return `${(100 * share).toFixed(digits)}\u202f%`;
}

function field(name, text) {
  const element = region.querySelector(`[data-field="${name}"]`);
  if (element && element.textContent !== String(text)) element.textContent = text;
}

function announceEnd(job) {
  document.getElementById("message").textContent = `The job has ${job.status === "succeeded" ? "succeeded" : `ended: ${job.status}`}.`;
}
