// Whoever comes by a link from elsewhere has no cookie yet on this very request, but may be signed
// in: asked from here, the server knows, and sends them on.

const answer = await fetch(location.href, { redirect: "manual" });
if (answer.type === "opaqueredirect") location.replace(location.href);
