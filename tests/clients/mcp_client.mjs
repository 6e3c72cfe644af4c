// The TypeScript SDK's client of the Model Context Protocol, through Weir to mcp_server.py: `QUOTA`
// calls of search pass, and none of run_report. STATUS is what refusals are answered with.
//
//     mcp_client.mjs FOLDER URL STATUS QUOTA
//
// FOLDER has node_modules.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [folder, url, status, quota] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const transports = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { McpError } = require("@modelcontextprotocol/sdk/types.js");

const client = new Client({ name: "weir-test", version: "1" });
await client.connect(new transports.StreamableHTTPClientTransport(new URL(`${url}/mcp`)));
const call = (name, args) => client.callTool({ name, arguments: args });
const refusal = async (name, args) => {
  const error = await call(name, args).catch((error) => error);
  assert.ok(error instanceof Error, `${name} was called`);
  return error;
};

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name).sort(), ["calls", "run_report", "search"]);
for (let number = 0; number < Number(quota); number += 1) {
  const result = await call("search", { query: String(number) });
  assert.equal(result.content[0].text, `nothing about ${number}`);
}
const error = await refusal("search", { query: "more" });
if (status === "200") {
  assert.ok(error instanceof McpError, String(error));
  assert.equal(error.code, -32029);
  assert.deepEqual([error.data.limit, error.data.tool], ["searches", "search"]);
} else {
  // The SDK reads no body of another status: it is a part of the message.
  assert.ok(error instanceof transports.StreamableHTTPError, String(error));
  assert.equal(error.code, 429);
}
assert.match(error.message, /Rate limit: the tool .*search.* was not called\. .* Try again in /);
assert.match((await refusal("run_report", { name: "a" })).message, /run_report/);
// The connection and the session are as good as before.
const counts = (await call("calls", {})).structuredContent;
assert.deepEqual([counts.search, counts.run_report], [Number(quota), undefined]);
await client.close();
console.log("done");
