// Asking the API from a page: the browser adds the cookie, and errors come with their hints.

export class Problem extends Error {
  constructor({ detail, hint, code, errors }) {
    super(detail);
    this.hint = hint;
    this.code = code;
    this.errors = errors ?? [];
  }

  static away() {
    return new Problem({
      code: "no_answer",
      detail: "The server does not answer.",
      hint: "Is it running, and are you connected? Nothing was changed; try again.",
    });
  }

  static from(status, text) {
    try {
      return new Problem(JSON.parse(text));
    } catch {
      return new Problem({ code: `http_${status}`, detail: `The server answered ${status}.` });
    }
  }
}

export async function send(method, path, body) {
  const isForm = body instanceof FormData; // whose type, with its boundary, the browser knows
  const headers = { "Idempotency-Key": token() };
  if (!isForm) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: isForm || body === undefined ? body : JSON.stringify(body),
    });
  } catch {
    throw Problem.away();
  }
  const text = await response.text();
  if (!response.ok) throw Problem.from(response.status, text);
  return text ? JSON.parse(text) : null; // what was deleted is answered with nothing
}

// Numbers, lists, true and false as JSON; nothing as none; the rest as words.
export function read(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Names between commas.
export function split(text) {
  return text.split(",").map((part) => part.trim());
}

export function token() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// What went wrong, as elements; never as HTML, because messages quote what users sent.
export function describe(problem) {
  const box = document.createElement("div");
  box.className = "problem";
  box.append(paragraph(problem.message, "strong"));
  if (problem.hint) box.append(paragraph(problem.hint));
  if (problem.code) box.append(paragraph(problem.code, null, "code"));
  return box;
}

function paragraph(text, wrapper, className) {
  const p = document.createElement("p");
  if (className) p.className = className;
  const inner = wrapper ? document.createElement(wrapper) : p;
  inner.textContent = text;
  if (wrapper) p.append(inner);
  return p;
}
