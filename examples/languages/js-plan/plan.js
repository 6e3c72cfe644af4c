// A policy in JavaScript: requests a minute by the plan of an API key. Replies with some statuses
// cost nothing.

const MINUTE_MS = 60_000;

let config;

function object(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** What is wrong with a configuration: nothing, if the list is empty. */
function mistakesIn({ plans, keys = {}, fallback, free_statuses = [], ...unknown }) {
  const mistakes = [];
  const wrong = (path, found, expected) =>
    mistakes.push({ path, message: `found ${JSON.stringify(found)}, expected ${expected}` });
  if (!object(plans)) {
    wrong("plans", plans, "a table of plans");
    return mistakes;
  }
  for (const [name, quota] of Object.entries(plans)) {
    if (!Number.isInteger(quota) || quota < 0 || quota > 1_000_000) {
      wrong(`plans.${name}`, quota, "requests a minute, 0 to 1000000");
    }
  }
  const names = Object.keys(plans).join(", ");
  if (!Object.hasOwn(plans, fallback)) wrong("fallback", fallback, `one of ${names}`);
  if (!object(keys)) wrong("keys", keys, "a table of API keys and their plans");
  for (const [key, plan] of Object.entries(keys)) {
    if (!Object.hasOwn(plans, plan)) wrong(`keys.${key}`, plan, `one of ${names}`);
  }
  if (!Array.isArray(free_statuses)) wrong("free_statuses", free_statuses, "a list of statuses");
  for (const key of Object.keys(unknown)) {
    mistakes.push({ path: key, message: `found the unknown key \`${key}\`, expected none` });
  }
  return mistakes;
}

function algorithm(quota) {
  const rate = { amount: quota, perMs: MINUTE_MS };
  return { tag: "fixed-window", val: { rate, alignment: "first-request" } };
}

export const handler = {
  configure(text) {
    config = JSON.parse(text);
    const mistakes = mistakesIn(config);
    // What is thrown is the error of the function's `result`.
    if (mistakes.length > 0) throw mistakes;
    return {
      requestFacts: ["header.x-api-key", "client-ip"],
      responseFacts: [],
      pure: true,
      limits: Object.entries(config.plans).map(([plan, quota]) => ({
        name: plan,
        at: `plans.${plan}`,
        algorithm: algorithm(quota),
        keyFacts: ["header.x-api-key", "client-ip"],
        keyPrefix: "",
        options: [],
      })),
      warnings: [],
      options: [],
    };
  },

  decide(facts) {
    const known = new Map(facts);
    const apiKey = known.get("header.x-api-key");
    const customer = apiKey !== undefined && Object.hasOwn(config.keys ?? {}, apiKey);
    const plan = customer ? config.keys[apiKey] : config.fallback;
    const limit = {
      name: plan,
      // An unknown key is counted by address: else each invented one would have its own allowance.
      key: customer ? `key:${apiKey}` : `ip:${known.get("client-ip")}`,
      algorithm: algorithm(config.plans[plan]),
      cost: 1,
      enforcement: "enforce",
      refund: "by-settle",
      onStoreError: "route-default",
      options: [],
    };
    return {
      verdict: { tag: "check", val: [limit] },
      upstreamHeaders: [["x-plan", plan]],
      responseHeaders: [],
      labels: [["plan", plan]],
      // The memo: `settle` may run in another instance.
      settleWith: plan,
      settleOnRefusal: false,
      bodyChanges: [],
      options: [],
    };
  },

  settle(plan, response) {
    const isFree = (config.free_statuses ?? []).includes(response.status);
    const giveBack = { limit: plan, change: { tag: "units", val: -1 } };
    return { adjustments: isFree ? [giveBack] : [], labels: [], amounts: [], options: [] };
  },
};
