// A file on its way to the API: dropped or chosen, sent as it is, with its progress.

import { Problem, describe, split, token } from "./api.js";

const START = 512; // bytes: a header's length, and the brace it begins with; of a zip, the first name
const CONVERT = "`grasp push` converts .pt, .pth and .ckpt files on your machine, and uploads them.";
const NUMPY = /^PK\x03\x04[^]{26}[^\0]*?\.npy/; // a zip archive, by its first name
const TORCH = /^PK\x03\x04[^]{26}[^\0]*?data\.pkl/;
const LOOKALIKES = [
  [NUMPY, ": it is a NumPy archive: target data, not weights", "Register it as a target."],
  [TORCH, ": it looks like one of torch.save", CONVERT],
  [/^/, "", CONVERT],
];

for (const form of document.querySelectorAll("form[data-upload]")) prepare(form);

function prepare(form) {
  const input = form.elements.file;
  const zone = form.querySelector(".drop");
  input.addEventListener("change", () => showChosen(form));
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const name of ["dragleave", "drop"]) {
    zone.addEventListener(name, () => zone.classList.remove("over"));
  }
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    input.files = event.dataTransfer.files;
    showChosen(form);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await upload(form);
  });
}

function showChosen(form) {
  const [file] = form.elements.file.files;
  field(form, "chosen", file ? `${file.name}, ${bytes(file.size)}` : "");
  showProblem(form, null);
}

async function upload(form) {
  const [file] = form.elements.file.files;
  showProblem(form, null);
  busy(form, true);
  try {
    if (form.dataset.upload === "/sources") await requireSafetensors(file);
    const created = await send(form, file);
    location.assign(`/ui/jobs/${created.job.id}`);
  } catch (problem) {
    showProblem(form, problem);
    busy(form, false);
  }
}

// The server would say so too, but only once much of a large file is on its way.
async function requireSafetensors(file) {
  const start = new TextDecoder("latin1").decode(await file.slice(0, START).arrayBuffer());
  if (start[8] === "{") return;
  const [, what, hint] = LOOKALIKES.find(([pattern]) => pattern.test(start));
  throw new Problem({
    code: "invalid_checkpoint",
    detail: `${file.name} is not a safetensors file${what}.`,
    hint,
  });
}

function send(form, file) {
  const request = new XMLHttpRequest();
  request.open("POST", `${form.dataset.upload}?${query(form, file)}`);
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.setRequestHeader("Idempotency-Key", token());
  const stop = form.querySelector("[data-abort]");
  stop.onclick = () => request.abort();
  request.upload.onprogress = (event) => showSent(form, event.loaded, event.total);
  return new Promise((resolve, reject) => {
    request.onload = () => {
      if (request.status < 300) resolve(JSON.parse(request.responseText));
      else reject(Problem.from(request.status, request.responseText));
    };
    request.onerror = () => reject(Problem.away());
    request.onabort = () => reject(new Problem({ detail: "Stopped. Nothing was kept." }));
    request.send(file);
  });
}

function query(form, file) {
  const { model, name, kind, classes, dry_run: dryRun } = form.elements;
  const given = new URLSearchParams();
  if (model) given.set("model", model.value);
  given.set("name", name.value.trim() || file.name);
  if (kind) given.set("kind", kind.value);
  const names = split(classes?.value ?? "");
  if (names.some(Boolean)) given.set("classes", JSON.stringify(names));
  if (dryRun?.checked) given.set("dry_run", "true");
  return given;
}

// The bar moves all the time; the words, which are read aloud, with every tenth.
function showSent(form, loaded, total) {
  const bar = form.querySelector("progress");
  const tenth = (share) => Math.floor(10 * share);
  if (tenth(bar.value) !== tenth(loaded / total)) {
    const whole = loaded === total;
    field(form, "sent", whole ? "Sent; it is being stored." : `${bytes(loaded)} of ${bytes(total)}`);
  }
  bar.value = loaded / total;
}

function busy(form, on) {
  form.querySelector(".sending").hidden = !on;
  form.querySelector("[data-abort]").hidden = !on;
  form.querySelector("button.primary").disabled = on;
  form.querySelector("progress").removeAttribute("value");
  field(form, "sent", on ? "Looking at the file" : "");
}

function showProblem(form, problem) {
  form.querySelector(".outcome").replaceChildren(...(problem ? [describe(problem)] : []));
}

function field(form, name, text) {
  form.querySelector(`[data-field="${name}"]`).textContent = text;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count.toFixed(unit && count < 100 ? 1 : 0)} ${units[unit]}`;
}
