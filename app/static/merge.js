// The merge parameters of a model: what was changed is sent, and shown as the server keeps it.

import { describe, read, send } from "./api.js";
import { fetchPage, say } from "./page.js";

const BODY = "body.merge."; // where values are in a request

const form = document.querySelector("form[data-merge]");
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearProblems();
  try {
    await send("PATCH", form.dataset.merge, { merge: changes() });
    await showKept();
    say("Later folds use these parameters.");
  } catch (problem) {
    showProblem(problem);
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

function clearProblems() {
  form.querySelector(".outcome").replaceChildren();
  for (const wrong of form.querySelectorAll(".wrong")) wrong.replaceChildren();
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

// Each error at its field; those that have none, or a problem without any, beside the button.
function showProblem(problem) {
  const homeless = problem.errors?.filter((error) => !showError(error)) ?? [];
  if (homeless.length || !problem.errors?.length) {
    const listed = homeless.map(({ where, message }) => `${where}: ${message}`).join("; ");
    const { message, hint, code } = problem;
    form.querySelector(".outcome").replaceChildren(describe({ message: listed || message, hint, code }));
  }
  form.querySelector("[aria-invalid]")?.focus();
}

// Whether it has a field.
function showError({ where, message }) {
  const field = findField(where);
  if (!field) return false;
  field.setAttribute("aria-invalid", "true");
  const wrong = document.getElementById(`wrong-${field.name}`);
  const inside = where.slice(BODY.length + field.name.length + 1);
  const line = document.createElement("span");
  line.textContent = inside ? `${inside}: ${message}` : message;
  wrong.append(line);
  return true;
}

// That of the longest part of the path: of candidates.1.tau, candidates.
function findField(where) {
  if (!where.startsWith(BODY)) return null;
  const names = where.slice(BODY.length).split(".");
  for (let count = names.length; count > 0; count -= 1) {
    const field = form.elements.namedItem(names.slice(0, count).join("."));
    if (field?.matches("[data-kept]")) return field;
  }
  return null;
}

// A preset changes others too.
async function showKept() {
  const groups = (await fetchPage())?.querySelector("form[data-merge] .groups");
  if (groups) form.querySelector(".groups").replaceWith(groups);
}
