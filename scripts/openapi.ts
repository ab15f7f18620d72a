// Writes the OpenAPI document that is published, from the routes. A test fails where the two differ.
import { writeFile } from "node:fs/promises";
import { openApiDocument } from "../packages/fencepost/src/api/document.ts";

const file = new URL("../packages/fencepost/openapi.json", import.meta.url);
await writeFile(file, `${JSON.stringify(openApiDocument(), null, 2)}\n`);
