// Asks Weir, a rate limiter, over its HTTP decision API. Node 18 or later, no dependencies.
import { randomUUID } from "node:crypto";
import { STATUS_CODES } from "node:http";

const MAX_CALL = 1 << 20; // bytes of a call, or of a batch: Weir takes no more
const MAX_ANSWER = 1 << 20; // bytes of one call's answer; a batch's may have 16 times as many
const MISTAKES = [400, 401, 403, 404, 405, 409, 413, 415, 422, 431];

/** The call itself is wrong: bad request, bad token, no such domain, too long. */
export class WeirError extends Error {
  constructor(status, detail) {
    super(`${status}: ${detail}`);
    Object.assign(this, { name: "WeirError", status, detail });
  }
}

/**
 * A decision is a frozen `{allowed, status, fields, body, limits, id, retryAfterMs, degraded,
 * requestFields, refusedBy}`. If refused, answer with `status`, `fields` and `body`; if allowed,
 * add `fields` to your answer and set `requestFields` on the request that is passed on.
 */
export class Weir {
  #url;
  #headers;
  #timeoutMs;
  #allow;

  /**
   * `timeoutMs` is for a whole call; `onError` ("deny" or "allow") says what holds while Weir
   * gives no decision. For https with an authority of your own, start Node with
   * NODE_EXTRA_CA_CERTS.
   *
   * A connection that does not come about is tried for 10 s, also if its call has ended long
   * before: `fetch` has no setting for that. Nor has it one for how many there are. If the host's
   * name has several addresses, each is tried for 250 ms before the next: call
   * `net.setDefaultAutoSelectFamilyAttemptTimeout(50)`, which is for the whole process.
   */
  constructor(url, { token, timeoutMs = 250, onError = "deny" } = {}) {
    const { protocol, username, password, search, hash, href } = new URL(url);
    if (!/^https?:$/.test(protocol) || username || password || search || hash) {
      throw new TypeError("url must be http[s]://HOST[:PORT][/PATH]");
    }
    if (onError !== "deny" && onError !== "allow") throw new TypeError("onError: deny or allow");
    if (!(Number.isSafeInteger(timeoutMs) && timeoutMs > 0 && timeoutMs < 2 ** 31)) {
      throw new TypeError("timeoutMs: an integer from 1 to 2147483647");
    }
    this.#url = href.replace(/[?#]*$/, "").replace(/\/+$/, "");
    if (!/^[ -~]*$/.test(token ?? "")) throw new TypeError("token: printable ASCII characters");
    this.#headers = { "content-type": "application/json" };
    if (token !== undefined) this.#headers.authorization = `Bearer ${token}`;
    this.#timeoutMs = timeoutMs;
    this.#allow = onError === "allow";
  }

  /** Takes `hits` units by the policy of `domain`. With `holdMs`, settle it later. */
  async decide(domain, { facts, entries, hits = 1, holdMs, idempotencyKey } = {}) {
    const call = { domain, facts, entries, hits, hold_ms: holdMs };
    return this.#read(...(await this.#ask("/v1/decide", call, keyOf(idempotencyKey))));
  }

  /** As `decide`, but by the caller's own `limits`, counted by `entries`. */
  async take(domain, entries, limits, { facts, hits = 1, holdMs, idempotencyKey } = {}) {
    const call = { domain, facts, entries, limits, hits, hold_ms: holdMs };
    return this.#read(...(await this.#ask("/v1/take", call, keyOf(idempotencyKey))));
  }

  /** What would be decided. Takes nothing. */
  async look(domain, { facts, entries, limits } = {}) {
    return this.#read(...(await this.#ask("/v1/look", { domain, facts, entries, limits })));
  }

  /**
   * Closes a held decision. `status` is that of the answer, if there was one; without it
   * "completed" means 200. False: not delivered, or `id` is not known (any more).
   */
  async settle(id, { outcome = "completed", status, facts } = {}) {
    return this.#close("/v1/settle", { id, outcome, status, facts });
  }

  /** Gives back all that a held decision took. False: as for `settle`. */
  async giveBack(id) {
    return this.#close("/v1/give-back", { id });
  }

  /** Holds a held decision for as long from now on. False: as for `settle`. */
  async renew(id, holdMs) {
    return this.#close("/v1/renew", { id, hold_ms: holdMs }, "renewed");
  }

  /**
   * Up to 1,024 `calls`, as the API has them, to /v1/decide, /v1/take or /v1/look: an array of
   * decisions in their order. For a call that is itself wrong it has a WeirError.
   */
  async batch(path, calls, { idempotencyKey } = {}) {
    const key = path === "/v1/look" ? undefined : keyOf(idempotencyKey);
    const [status, answers] = await this.#ask(path, calls, key, 16 * MAX_ANSWER);
    if (!Array.isArray(answers) || answers.length !== calls.length) {
      return calls.map(() => this.#read(status, answers));
    }
    return answers.map((answer) => {
      try {
        const problem = answer?.error;
        return problem ? this.#read(Number(problem.status), problem) : this.#read(200, answer);
      } catch (error) {
        return error;
      }
    });
  }

  async #close(path, call, done = "settled") {
    const [status, answer] = await this.#ask(path, call);
    if (status !== 404) throwMistake(status, answer);
    return status === 200 && answer?.[done] === true;
  }

  #read(status, answer) {
    throwMistake(status, answer);
    let degraded = status ? (STATUS_CODES[status] ?? String(status)) : "unreachable";
    if (status === 200) {
      if (isDecision(answer)) return decisionOf(answer);
      degraded = "bad answer";
    }
    return decisionOf({ allowed: this.#allow, status: this.#allow ? 200 : 503, degraded });
  }

  // The answer's HTTP status (0: none came) and its JSON (undefined: it isn't any).
  async #ask(path, call, key, bound = MAX_ANSWER) {
    for (const one of Array.isArray(call) ? call : [call]) check(one);
    const body = Buffer.from(JSON.stringify(call));
    if (body.length > MAX_CALL) { // Weir's own answer can be lost while the rest is being sent
      throw new WeirError(413, `${body.length} bytes, not ${MAX_CALL} at most`);
    }
    const request = {
      method: "POST",
      headers: key ? { ...this.#headers, "idempotency-key": key } : this.#headers,
      body,
      redirect: "manual",
      signal: AbortSignal.timeout(this.#timeoutMs), // for both tries, and for reading the answer
    };
    try {
      const answer = await fetch(this.#url + path, request).catch((error) => {
        if (wasClosed(error.cause)) return fetch(this.#url + path, request);
        throw error;
      });
      return [answer.status, await json(answer, bound)];
    } catch (error) {
      // `fetch` asks nobody at the ports of some other protocols, such as 6000.
      if (error.cause?.message === "bad port") throw new TypeError(`${this.#url}: bad port`);
      return [0, undefined];
    }
  }
}

// Whether Weir closed an idle connection as it was reused. `fetch` says only how many bytes have
// ever come over it (none: it was a fresh one), and not that of every such error; nor can it be
// told to use a fresh one. What is sent again can't charge twice, though: it has a key, or takes
// nothing, or closes what can be closed once.
function wasClosed(cause) {
  if (cause?.code === "UND_ERR_SOCKET") return cause.socket?.bytesRead > 0;
  return cause?.code === "ECONNRESET" || cause?.code === "EPIPE";
}

async function json(answer, bound) {
  const chunks = [];
  let size = 0;
  for await (const chunk of answer.body ?? []) {
    size += chunk.length;
    if (size > bound) return undefined;
    chunks.push(chunk);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString());
  } catch {
    return undefined;
  }
}

function isDecision(o) {
  const pairs = (list = []) => Array.isArray(list) && list.every((p) => p?.length === 2);
  return typeof o?.allowed === "boolean" && Number.isInteger(o.status) && pairs(o.fields) &&
    pairs(o.request_fields);
}

function decisionOf(o) {
  return Object.freeze({
    allowed: o.allowed,
    status: o.status,
    fields: o.fields ?? [],
    body: o.body,
    limits: o.limits ?? [],
    id: o.id,
    retryAfterMs: o.retry_after_ms,
    degraded: o.degraded,
    requestFields: o.request_fields ?? [],
    refusedBy: o.refused_by ?? [],
  });
}

function keyOf(given = randomUUID().replaceAll("-", "")) {
  if (/^[ -~]{1,255}$/.test(given)) return given;
  throw new WeirError(400, "idempotencyKey: 1 to 255 printable ASCII characters");
}

// JSON would make another call of these: it leaves out what is undefined, so that nothing counts, a
// list counts by several values, a Map by none, and NaN becomes null, which is the default.
function check(call) {
  for (const name of ["hits", "hold_ms", "status"]) {
    if (call?.[name] !== undefined && !Number.isSafeInteger(call[name])) {
      throw new WeirError(400, `${name}: an integer`);
    }
  }
  const isText = (value) => typeof value === "string";
  const isTexts = (value) => Array.isArray(value) && value.every(isText);
  for (const of of ["facts", "entries"]) {
    const table = call?.[of];
    if (table === undefined) continue;
    const isPlain = Object.prototype.toString.call(table) === "[object Object]";
    const pairs = Array.isArray(table) ? table : isPlain ? Object.entries(table) : [table];
    const isPair = (pair) => Array.isArray(pair) && pair.length === 2 && isText(pair[0]) &&
      (isText(pair[1]) || (of === "facts" && isTexts(pair[1])));
    if (!pairs.every(isPair)) {
      throw new WeirError(400, `${of} are names and values that are texts`);
    }
  }
}

function throwMistake(status, answer) {
  if (!MISTAKES.includes(status)) return;
  throw new WeirError(status, answer?.detail ?? STATUS_CODES[status]);
}
