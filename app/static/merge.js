// The merge parameters of a model: what was changed is sent, and shown as the server keeps it.

import { describe, read, send } from "./api.js";
import { fetchPage, say } from "./page.js";

const form = document.querySelector("form[data-merge]");
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const outcome = form.querySelector(".outcome");
  outcome.replaceChildren();
  try {
    await send("PATCH", form.dataset.merge, { merge: changes() });
    await showKept();
    say("Later folds use these parameters.");
  } catch (problem) {
    outcome.replaceChildren(describe(problem));
  }
});

function changes() {
  const merge = {};
  for (const { name, value, dataset } of form.elements) {
    if (name && value.trim() !== dataset.kept) put(merge, name.split("."), read(value.trim()));
  }
  return merge;
}

function put(object, [name, ...inner], value) {
  if (inner.length) put((object[name] ??= {}), inner, value);
  else object[name] = value;
}

// A preset changes others too.
async function showKept() {
  const fields = (await fetchPage())?.querySelector("form[data-merge] .fields");
  if (fields) form.querySelector(".fields").replaceWith(fields);
}
