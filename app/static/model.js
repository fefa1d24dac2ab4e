// The form for a new model: its candidates, their parameters, and the files that are sent along.

import { describe, read, send, split } from "./api.js";

const FILES = ["file", "base"]; // the initial weights, and what sources were fine-tuned from

const form = document.querySelector("form[data-model]");
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const outcome = form.querySelector(".outcome");
  outcome.replaceChildren();
  try {
    const created = await send("POST", form.dataset.model, body());
    location.assign(`/ui/jobs/${created.job.id}`);
  } catch (problem) {
    outcome.replaceChildren(describe(problem));
  }
});

// Names of architectures, once somebody wants to type one.
form?.elements.architecture.addEventListener(
  "focus",
  async ({ target: { list, dataset } }) => {
    const answer = await fetch(dataset.names).catch(() => null); // it can be typed without
    const names = answer?.ok ? await answer.json() : [];
    list.replaceChildren(...names.map((name) => new Option("", name)));
  },
  { once: true },
);

// A form where files come along, else JSON.
function body() {
  const model = describeModel();
  const files = FILES.map((name) => [name, form.elements[name].files[0]]).filter(([, file]) => file);
  if (!files.length) return model;
  const parts = new FormData();
  parts.set("model", JSON.stringify(model));
  for (const [name, file] of files) parts.set(name, file);
  return parts;
}

function describeModel() {
  const chosen = candidates();
  const model = { merge: chosen.length ? { candidates: chosen } : {}, preprocessing: {} };
  for (const { name, value } of form.querySelectorAll(".fields > label > [name]:not([type=file])")) {
    const [outer, inner] = name.split(".");
    if (value !== "" && inner) model[outer][inner] = read(value);
    else if (value !== "") model[name] = value;
  }
  const classes = split(model.classes ?? "");
  if (classes.some(Boolean)) model.classes = classes;
  else delete model.classes;
  if (form.elements.initial_is_base.checked) model.base = "initial";
  return model;
}

// The names of those that are chosen, or objects where they have parameters.
function candidates() {
  return [...form.querySelectorAll("[name=candidates]:checked")].map(({ value: method }) => {
    const own = [...form.querySelectorAll(`[data-candidate="${CSS.escape(method)}"]`)]
      .filter(({ value }) => value.trim() !== "")
      .map(({ name, value }) => [name, read(value.trim())]);
    return own.length ? { method, ...Object.fromEntries(own) } : method;
  });
}
