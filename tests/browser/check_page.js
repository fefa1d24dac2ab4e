// What everybody needs of a page, as a list of what is missing.
() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const shown = (element) => element.checkVisibility();
  const nameOf = (element) =>
    element.getAttribute("aria-label") ||
    (element.getAttribute("aria-labelledby") ?? "")
      .split(" ")
      .map((id) => document.getElementById(id)?.textContent ?? "")
      .join(" ")
      .trim() ||
    element.textContent.trim() ||
    [...element.querySelectorAll("img[alt]")].map((image) => image.alt).join("");
  const say = (what, element) => faults.push(`${what}: ${element.outerHTML.slice(0, 120)}`);

  if (all("h1").length !== 1) faults.push(`${all("h1").length} h1`);
  if (all("main").length !== 1) faults.push(`${all("main").length} main`);
  if (!document.documentElement.lang) faults.push("no language");
  if (!document.title) faults.push("no title");

  let level = 1;
  for (const heading of all("main h1, main h2, main h3, main h4").filter(shown)) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) say("a heading skips a level", heading);
    level = own;
  }
  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids)) {
    if (ids.filter((other) => other === id).length > 1) faults.push(`two elements have the id ${id}`);
  }
  for (const field of all("input:not([type=hidden]), select, textarea")) {
    const named = field.labels?.length || field.getAttribute("aria-label");
    if (!named) say("a field without a label", field);
  }
  for (const image of all("img")) if (!image.hasAttribute("alt")) say("an image without alt", image);
  for (const element of all("a[href], button, summary, [role=img], [role=region], progress")) {
    if (!nameOf(element)) {
      if (element.matches("svg") && element.querySelector("title")) continue;
      say("it has no name", element);
    }
  }
  for (const cell of all("th")) if (!cell.hasAttribute("scope")) say("a header without scope", cell);
  for (const box of all("*").filter((element) => element.scrollWidth > element.clientWidth + 1)) {
    const scrolls = ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    if (scrolls && box.tabIndex < 0) say("it scrolls, but not by keyboard", box);
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) faults.push(`the page scrolls sideways: ${scrollWidth} > ${clientWidth}`);
  return faults;
};
