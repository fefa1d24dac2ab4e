// From a target to merged weights, with openapi-fetch and the types that openapi-typescript writes.
//
// node walk.js URL FOLDER: reads target.zip and the checkpoint source.safetensors there, writes
// merged.safetensors. A test type-checks it beside the types, and runs it.

import createClient from "openapi-fetch";

import type { components, paths } from "./schema";

declare const process: { argv: string[]; getBuiltinModule(name: "fs"): Files };
interface Files {
  readFileSync(path: string): Uint8Array<ArrayBuffer>;
  writeFileSync(path: string, content: Uint8Array): void;
}

const [url, folder] = process.argv.slice(2);
const files = process.getBuiltinModule("fs");
const client = createClient<paths>({ baseUrl: url });

// What the document calls binary is a string to the types, and whatever fetch takes to the client.
const binary = (content: Uint8Array<ArrayBuffer>) => new Blob([content]) as unknown as string;
const asForm = (body: unknown) => {
  const form = new FormData();
  for (const [name, value] of Object.entries(body as Record<string, string>)) form.append(name, value);
  return form;
};
const asBytes = {
  bodySerializer: (body: unknown) => body as Blob,
  headers: { "Content-Type": "application/octet-stream" },
};

function expect<Data>(answer: { data?: Data; error?: components["schemas"]["Problem"] }): Data {
  if (answer.data === undefined) throw new Error(answer.error?.detail ?? "nothing came");
  return answer.data;
}

async function follow(job: components["schemas"]["JobRead"]): Promise<void> {
  const params = { path: { job: job.id }, query: { wait: 60 } };
  const ended = expect(await client.GET("/jobs/{job}", { params }));
  if (ended.status !== "succeeded") throw new Error(`${job.id} has ended as ${ended.status}`);
}

const weights = files.readFileSync(`${folder}/source.safetensors`);
const data = binary(files.readFileSync(`${folder}/target.zip`));

const target = await client.POST("/targets", {
  body: { name: "of-typescript", file: data },
  bodySerializer: asForm,
});
await follow(expect(target).job);

const model = await client.POST("/models", {
  body: { name: "typescript", architecture: "test_vit", target: "of-typescript" },
});
await follow(expect(model).job);

const begun = await client.POST("/uploads", {
  params: { header: { "upload-length": weights.length } },
});
const upload = expect(begun);
await client.PATCH("/uploads/{upload}", {
  params: { path: { upload: upload.id }, header: { "upload-offset": upload.received } },
  body: binary(weights),
  ...asBytes,
});
const source = await client.POST("/sources", { body: { model: "typescript", upload: upload.id } });
await follow(expect(source).job);

const again = await client.POST("/sources", {
  params: { query: { model: "typescript" } },
  body: binary(weights),
  ...asBytes,
});
if (expect(again).job.id !== expect(source).job.id) throw new Error("another source");

const merged = await client.GET("/models/{model}", {
  params: { path: { model: "typescript" } },
  parseAs: "arrayBuffer",
});
files.writeFileSync(`${folder}/merged.safetensors`, new Uint8Array(expect(merged)));
