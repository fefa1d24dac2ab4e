// A job while it runs: each event moves the bar, the steps and the loss curve.

import { refresh } from "./page.js";

const ENDED = ["succeeded", "rejected", "failed", "cancelled"];
const AGAIN_MS = 3000;
const WIDTH = 560;
const HEIGHT = 160;

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

function showMetrics({ losses, loss, step, steps, trial, trials, val_accuracy: accuracy }) {
  const figure = region.querySelector("figure.live");
  if (!figure || !losses) return;
  figure.hidden = false;
  field("loss", loss?.toFixed(3) ?? "–");
  field("step", step === undefined ? "–" : `${step} of ${steps}`);
  field("trial", trials ? `learning rate ${trial} of ${trials}` : "");
  field("val_accuracy", accuracy === undefined ? "–" : percent(accuracy, 1));
  figure.querySelector("polyline").setAttribute("points", curve(losses));
}

// Losses over progress, from the first to the end of the job.
function curve(losses) {
  const [[from]] = losses;
  const high = Math.max(...losses.map(([, loss]) => loss));
  const places = losses.map(([at, loss]) => [
    (WIDTH * (at - from)) / (1 - from),
    HEIGHT - (HEIGHT - 10) * (loss / high),
  ]);
  return places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
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
