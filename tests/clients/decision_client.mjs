// What examples/clients/javascript/weir.mjs does with a real Weir, and with servers that misbehave.
//
//     decision_client.mjs WEIR_URL UNREACHABLE_URL

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { Weir, WeirError } from "../../examples/clients/javascript/weir.mjs";

const [url, nowhere] = process.argv.slice(2);
const weir = new Weir(url, { timeoutMs: 5000 });
const entries = { user: "javascript" };
const left = async () => (await weir.look("users", { entries })).limits[0].remaining;
assert.equal(await left(), 3);
const first = await weir.decide("users", { entries, idempotencyKey: "j1" });
assert.deepEqual(first, await weir.decide("users", { entries, idempotencyKey: "j1" }));
assert.equal(await left(), 2);
let held = await weir.decide("users", { entries, hits: 2, holdMs: 60_000 });
const refused = await weir.decide("users", { entries });
assert.deepEqual([refused.allowed, refused.status, refused.refusedBy], [false, 429, ["user"]]);
assert.ok(Object.fromEntries(refused.fields)["retry-after"] && refused.body);
assert.equal(await weir.renew(held.id, 30_000), true);
assert.deepEqual([await weir.giveBack(held.id), await weir.giveBack(held.id)], [true, false]);
held = await weir.decide("users", { entries, holdMs: 60_000 });
assert.deepEqual([await weir.settle(held.id), await weir.settle(held.id)], [true, false]);
held = await weir.decide("users", { entries: { user: "j3" }, holdMs: 60_000 });
assert.equal(await weir.settle(held.id, { outcome: "client-gone" }), true);
const one = [{ name: "own", algorithm: "fixed_window", quota: 1, period: "1d" }];
const taken = [await weir.take("users", entries, one), await weir.take("users", entries, one)];
assert.deepEqual(taken.map((decision) => decision.allowed), [true, false]);
const calls = Array(4).fill({ domain: "users", entries: { user: "j2" } });
const answers = await weir.batch("/v1/decide", calls);
assert.deepEqual(answers.map((decision) => decision.allowed), [true, true, true, false]);
await assert.rejects(weir.decide("nobody"), (error) => error instanceof WeirError && error.status === 404);
for (const [onError, allowed] of [["deny", false], ["allow", true]]) {
  const fallen = await new Weir(nowhere, { onError }).decide("users", { entries });
  assert.deepEqual([fallen.allowed, fallen.degraded], [allowed, "unreachable"]);
}

// What JSON would make another call of, and so be allowed uncounted.
const careless = new Weir(nowhere, { onError: "allow" });
const mistake = (status) => (error) => error instanceof WeirError && error.status === status;
for (const wrong of [undefined, null, 7, ["a", "b"]]) {
  const call = { domain: "users", entries: { user: wrong } };
  await assert.rejects(careless.decide("users", call), mistake(400));
  await assert.rejects(careless.decide("users", { entries: [["user", wrong]] }), mistake(400));
  await assert.rejects(careless.batch("/v1/decide", [call]), mistake(400));
}
for (const wrong of [undefined, null, 7, ["a", undefined]]) {
  await assert.rejects(careless.decide("users", { facts: { path: wrong } }), mistake(400));
}
for (const wrong of [null, new Map([["user", "a"]]), new URLSearchParams("user=a"), "user"]) {
  await assert.rejects(careless.decide("users", { entries: wrong }), mistake(400));
}
for (const wrong of [NaN, Infinity, 1.5, null, "1"]) {
  await assert.rejects(careless.decide("users", { entries, hits: wrong }), mistake(400));
  await assert.rejects(careless.decide("users", { entries, holdMs: wrong }), mistake(400));
}
const long = { facts: { path: "/".repeat(1 << 20) } };
await assert.rejects(careless.decide("users", long), mistake(413));
for (const wrong of ["ftp://a", "http://u:p@a", "http://a?b", "http://a#b", "http://a:65536"]) {
  assert.throws(() => new Weir(wrong), TypeError);
}
for (const timeoutMs of [0, NaN, Infinity, 2 ** 31]) {
  assert.throws(() => new Weir(url, { timeoutMs }), TypeError);
}
await assert.rejects(new Weir("http://127.0.0.1:6000").decide("users"), TypeError);

const given = [];
const keys = [];
const server = createServer((request, response) => {
  keys.push(request.headers["idempotency-key"]);
  const [status, body] = given.shift();
  request.resume().on("end", () => {
    if (status === 0) return request.socket.resetAndDestroy();
    response.writeHead(status).end(JSON.stringify(body));
  });
}).listen(0, "127.0.0.1");
await once(server, "listening");
const misled = new Weir(`http://127.0.0.1:${server.address().port}`, { timeoutMs: 5000, onError: "allow" });
for (const status of [405, 413, 415, 431]) {
  given.push([status, {}]);
  await assert.rejects(misled.decide("users"), mistake(status));
}
const batch = [200, [{ allowed: true, status: 200 }, { error: { status: 413 } }]];
given.push(batch, [0], batch); // the second is sent again, with its key
for (let i = 0; i < 2; i++) {
  const [one, other] = await misled.batch("/v1/decide", [{}, {}]);
  assert.ok(one.allowed && mistake(413)(other));
}
const sent = keys.slice(-3);
assert.ok(sent[0] && sent[1] && sent[0] !== sent[1] && sent[1] === sent[2], sent);
server.close();
server.closeAllConnections();
console.log("done");
