// What examples/clients/javascript/weir.mjs does with a real Weir.
//
//     decision_client.mjs WEIR_URL UNREACHABLE_URL

import assert from "node:assert/strict";
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
console.log("done");
