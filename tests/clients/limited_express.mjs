// An application on Express behind examples/clients/javascript/express.mjs.
//
//     limited_express.mjs FOLDER WEIR_URL
//
// FOLDER has node_modules. Prints `listening ADDRESS`.

import { createRequire } from "node:module";
import { limit } from "../../examples/clients/javascript/express.mjs";
import { Weir } from "../../examples/clients/javascript/weir.mjs";

const [folder, url] = process.argv.slice(2);
const express = createRequire(`${folder}/`)("express");
const app = express();
app.use(limit(new Weir(url, { timeoutMs: 5000 }), "api", { own: ["x-plan"] }));
app.get("/{*path}", (request, response) => {
  response.send(`hello ${request.get("x-plan") ?? ""}\n`);
});
const server = app.listen(0, "127.0.0.1", () => {
  console.log(`listening 127.0.0.1:${server.address().port}`);
});
