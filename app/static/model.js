// The form for a new model: its candidates, their parameters, and a base that is sent along.

import { describe, read, send } from "./api.js";

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

function body() {
  const chosen = candidates();
  const model = { merge: chosen.length ? { candidates: chosen } : {}, preprocessing: {} };
  for (const { name, value } of form.querySelectorAll(".fields > label > [name]:not([type=file])")) {
    const [outer, inner] = name.split(".");
    if (value !== "" && inner) model[outer][inner] = read(value);
    else if (value !== "") model[name] = value;
  }
  const [base] = form.elements.base.files;
  if (!base) return model;
  const parts = new FormData();
  parts.set("model", JSON.stringify(model));
  parts.set("base", base);
  return parts;
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
