// A job while it runs: each event moves the bar, the steps and the loss curves.

import { refresh } from "./page.js";

const ENDED = ["succeeded", "rejected", "failed", "cancelled"];
const AGAIN_MS = 3000;
const WIDTH = 560; // of the chart, and where its axes are
const HEIGHT = 200;
const LEFT = 52;
const RIGHT = WIDTH - 14;
const TOP = 12;
const BOTTOM = HEIGHT - 26;
const TICKS = 4; // of an axis, about
const COLOURS = 7;
const SAID = 0.05; // of a job: before that, nobody knows how long it takes

const region = document.getElementById("job");
const latest = { candidate: null }; // what looks and steps say in turns, of the candidate that runs
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
  field("left", timeLeft(job));
  showStage(job.stage, job.metrics.candidate);
  showMetrics(job.metrics);
}

function timeLeft({ progress, started_at: started }) {
  const elapsed = (Date.now() - Date.parse(started)) / 1000;
  if (progress < SAID || !(elapsed > 0)) return "";
  return `about ${duration((elapsed * (1 - progress)) / progress)} left`;
}

function duration(seconds) {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))}\u202fs`;
  const minutes = Math.round(seconds / 60);
  const hours = Math.floor(minutes / 60);
  return hours ? `${hours}\u202fh ${minutes % 60}\u202fmin` : `${minutes}\u202fmin`;
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

function showMetrics({ curves, step, steps, trial, trials, ...metrics }) {
  const figure = region.querySelector("figure.live");
  if (!figure || !curves) return;
  figure.hidden = false;
  const { loss, epoch, epochs, val_accuracy: accuracy } = keepLatest(metrics);
  field("loss", loss?.toFixed(3) ?? "–");
  field("step", step === undefined ? "–" : `${step} of ${steps}`);
  field("epoch", showEpoch(epoch, epochs));
  field("trial", trials ? `learning rate ${trial} of ${trials}` : "");
  field("val_accuracy", accuracy === undefined ? "–" : percent(accuracy, 1));
  draw(figure, running(Object.entries(curves)), steps);
}

// Another candidate begins anew.
function keepLatest({ candidate = null, ...metrics }) {
  if (candidate !== latest.candidate) for (const name of Object.keys(latest)) delete latest[name];
  return Object.assign(latest, { candidate, ...metrics });
}

function showEpoch(epoch, epochs) {
  if (epoch === undefined) return "";
  return epochs === undefined ? `epoch ${epoch}` : `epoch ${epoch} of ${epochs}`;
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
  const across = (at) => (LEFT + ((RIGHT - LEFT) * at) / far).toFixed(1);
  const up = (loss) => (BOTTOM - ((BOTTOM - TOP) * loss) / high).toFixed(1);
  const place = ([at, loss]) => `${across(at)},${up(loss)}`;
  const axes = [
    ...ticks(high).flatMap((loss) => levelAt(up(loss), loss)),
    ...ticks(far, 1).map((at) => stepAt(across(at), at)),
    text("step", { x: LEFT - 8, y: HEIGHT - 6 }, "end"),
  ];
  const lines = curves.map(([, curve], i) =>
    shape("polyline", { class: `line s${i % COLOURS}`, points: curve.map(place).join(" ") }),
  );
  figure.querySelector("svg.chart").replaceChildren(...axes, ...lines);
  figure.querySelector("[data-names]").replaceChildren(...curves.map(([name], i) => entry(name, i)));
}

// Round values from zero on, not beyond the highest.
function ticks(highest, least = 0) {
  const power = 10 ** Math.floor(Math.log10(highest / TICKS));
  const step = Math.max(least, [1, 2, 5, 10].map((n) => n * power).find((n) => highest / n <= TICKS));
  return Array.from({ length: Math.floor(highest / step + 1e-9) + 1 }, (_, n) => n * step);
}

function levelAt(y, loss) {
  return [
    shape("line", { class: loss ? "grid" : "grid zero", x1: LEFT, x2: RIGHT, y1: y, y2: y }),
    label(loss, { class: "tick y", x: LEFT - 8, y: Number(y) + 4 }, "end"),
  ];
}

function stepAt(x, step) {
  return label(step, { class: "tick x", x, y: HEIGHT - 6 }, "middle");
}

function label(value, attributes, anchor) {
  return text(Number(value.toPrecision(3)), attributes, anchor); // 0.30000000000000004 is 0.3
}

function text(words, attributes, anchor) {
  const element = shape("text", { ...attributes, "text-anchor": anchor });
  element.textContent = words;
  return element;
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
