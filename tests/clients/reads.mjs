// An upstream that tells which values it read of a request, on Node.js.
//
//     reads.mjs http|express FOLDER
//
// FOLDER has node_modules. Prints `listening ADDRESS`. Each reply is a JSON object; what was not
// sent is null in it.

import http from "node:http";
import querystring from "node:querystring";
import { createRequire } from "node:module";

const [kind, folder] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { parse: cookies } = createRequire(require.resolve("cookie-parser"))("cookie");

const bearer = (value) => /^bearer +(.*)$/i.exec(value ?? "")?.[1].trim() ?? null;

const plain = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const { headers } = request;
    const url = new URL(request.url, "http://localhost");
    const read = {
      header: headers["x-api-key"] ?? null,
      bearer: bearer(headers.authorization),
      query: url.searchParams.get("username"),
      form: querystring.parse(Buffer.concat(pieces).toString("latin1")).username ?? null,
      cookie: cookies(headers.cookie ?? "").session ?? null,
      internal: headers["x-internal"] ?? null,
      user: headers["x-user"] ?? null,
      plan: headers["x-plan"] ?? null,
    };
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify(read));
  });
});

function express() {
  const express = require("express");
  const app = express();
  app.use(require("cookie-parser")());
  app.use(express.urlencoded({ extended: true }));
  app.use((request, response) => {
    response.json({
      header: request.get("x-api-key") ?? null,
      bearer: bearer(request.get("authorization")),
      query: request.query.username ?? null,
      form: request.body?.username ?? null,
      cookie: request.cookies.session ?? null,
      internal: request.get("x-internal") ?? null,
      user: request.get("x-user") ?? null,
      plan: request.get("x-plan") ?? null,
    });
  });
  return http.createServer(app);
}

const server = kind === "express" ? express() : plain;
server.keepAliveTimeout = 600_000;
server.listen(0, "127.0.0.1", () => {
  const { address, port } = server.address();
  console.log(`listening ${address}:${port}`);
});
