// The live page's script: puts what /events sends into its places, and asks /explain and /top.
// Everything that a client of the proxy may have written (paths, keys, header values) is put in as
// text, never as HTML. It asks nothing but the address that it came from.
"use strict";

(() => {
  const RETRY_MS = 2000;
  // The server sends something each second.
  const SILENT_MS = 6000;
  const ASK_MS = 5000;
  const SHOWN_MAX = 5;
  const TOKEN = "weir-admin-token";

  const byId = (id) => document.getElementById(id);
  const connection = byId("connection");
  const pause = byId("pause");

  let paused = false;
  let waiting = new Map(); // Parts that are not shown yet, by name.
  let stream = null; // Aborts the reply that is being read.
  let heard = 0;
  let pages = []; // The paths that this proxy has.

  // ---- The token ----------------------------------------------------------------------------------

  function headers() {
    const token = sessionStorage.getItem(TOKEN);
    return token ? { authorization: `Bearer ${token}` } : {};
  }

  function askForToken() {
    const refused = sessionStorage.getItem(TOKEN) !== null;
    sessionStorage.removeItem(TOKEN);
    byId("token-problem").textContent = refused ? "That is not the token." : "";
    byId("content").hidden = true;
    byId("token").hidden = false;
    byId("token-text").value = "";
    byId("token-text").focus();
    say("waiting for the token", "");
  }

  byId("token").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, byId("token-text").value.trim());
    byId("token").hidden = true;
    connect();
  });

  // ---- Events -------------------------------------------------------------------------------------

  function say(text, mood) {
    if (connection.textContent !== text) connection.textContent = text;
    connection.className = `connection ${mood}`;
  }

  async function connect() {
    if (stream) stream.abort();
    const mine = new AbortController();
    stream = mine;
    try {
      const reply = await fetch("/events", { headers: headers(), signal: mine.signal, cache: "no-store" });
      if (reply.status === 401) {
        stream = null;
        askForToken();
        return;
      }
      if (!reply.ok) throw new Error((await reply.text()).trim());
      byId("content").hidden = false;
      heard = Date.now();
      say(paused ? "paused" : "live", paused ? "" : "live");
      await read(reply.body.pipeThrough(new TextDecoderStream()).getReader());
      throw new Error("the proxy ended the connection");
    } catch (error) {
      if (stream !== mine) return;
      stream = null;
      if (document.hidden) return;
      say(`not connected: ${error.message}; trying again`, "lost");
      setTimeout(() => { if (!stream && !document.hidden) connect(); }, RETRY_MS);
    }
  }

  async function read(reader) {
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard = Date.now();
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        take(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  function take(event) {
    let name = "";
    const data = [];
    for (const line of event.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data.push(line.slice(6));
      else if (line === "data:") data.push("");
    }
    if (name === "tick") show();
    else if (name === "pages") {
      pages = data.join(" ").split(" ");
      ask();
    } else waiting.set(name, data.join("\n"));
  }

  // Shows what has come. A part in which somebody has selected text or moved the focus waits.
  function show() {
    if (paused) return;
    const selection = document.getSelection();
    for (const [name, html] of waiting) {
      const place = byId(`part-${name}`);
      if (!place) {
        waiting.delete(name);
        continue;
      }
      const isSelected = selection && !selection.isCollapsed && place.contains(selection.anchorNode);
      const isFocused = place !== document.activeElement && place.contains(document.activeElement);
      if (isSelected || isFocused) continue;
      // The server has escaped all that is not its own.
      place.innerHTML = html;
      waiting.delete(name);
    }
    reachable();
  }

  // Only what scrolls is a stop for the keyboard.
  function reachable() {
    for (const place of document.querySelectorAll(".scroll")) {
      if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
      else place.removeAttribute("tabindex");
    }
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
    if (stream) say(paused ? "paused" : "live", paused ? "" : "live");
    if (!paused) {
      show();
      ask();
    }
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      // Nobody looks: the proxy draws nothing.
      if (stream) stream.abort();
    } else if (!stream && byId("token").hidden) {
      connect();
    }
  });

  setInterval(() => {
    if (stream && !byId("content").hidden && Date.now() - heard > SILENT_MS) stream.abort();
  }, 1000);

  // ---- Building elements --------------------------------------------------------------------------

  // Characters that change how the text around them is read, or show as nothing.
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

  function plain(value) {
    if (value === null || value === undefined) return "\u2013";
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    return text.replace(HIDDEN, "\ufffd");
  }

  function element(name, className, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    for (const child of children) {
      made.append(child instanceof Node ? child : plain(child));
    }
    return made;
  }

  // columns: [title, class, (row) => text or element]
  function table(caption, columns, rows) {
    const made = element("table", "", element("caption", "", caption));
    const head = columns.map(([title, className]) => {
      const cell = element("th", className, title);
      cell.scope = "col";
      return cell;
    });
    made.append(element("thead", "", element("tr", "", ...head)));
    const lines = rows.map((row) =>
      element("tr", "", ...columns.map(([, className, value]) => element("td", className, value(row)))));
    made.append(element("tbody", "", ...lines));
    return made;
  }

  function put(place, ...children) {
    if (place.contains(document.activeElement) && place !== document.activeElement) return;
    place.replaceChildren(...children);
  }

  const number = (value) => (typeof value === "number" ? value.toLocaleString("en") : plain(value));

  function duration(ms) {
    if (typeof ms !== "number") return "\u2013";
    if (ms < 1000) return `${Math.round(ms)} ms`;
    const s = ms / 1000;
    if (s < 120) return `${s.toFixed(1)} s`;
    return s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
  }

  // Seconds or milliseconds since 1970, or a text.
  function moment(time) {
    const at = typeof time === "number" ? new Date(time > 1e11 ? time : time * 1000) : new Date(time);
    return Number.isNaN(at.getTime()) ? plain(time) : at.toISOString().replace("T", " ").replace(/\.\d+Z|Z/, " UTC");
  }

  const keyOf = (limit) => plain(limit.key ?? limit.digest);

  // ---- Why was this request refused? --------------------------------------------------------------

  async function json(path) {
    const reply = await fetch(path, { headers: headers(), cache: "no-store" });
    if (!reply.ok) throw new Error((await reply.text()).trim() || `status ${reply.status}`);
    return reply.json();
  }

  async function explain(id) {
    const place = byId("explain-answer");
    place.replaceChildren(element("p", "quiet", "asking \u2026"));
    try {
      const reply = await fetch(`/explain?request_id=${encodeURIComponent(id)}`, { headers: headers(), cache: "no-store" });
      if (!reply.ok) {
        const why = (await reply.text()).trim();
        place.replaceChildren(element("p", "", why || `Nothing is known of ${plain(id)}.`));
        return;
      }
      place.replaceChildren(...explanation(await reply.json()));
      reachable();
    } catch (error) {
      place.replaceChildren(element("p", "problem", error.message));
    }
  }

  function summary(found) {
    const refusing = (found.limits ?? []).filter((limit) => limit.enforced && !limit.fits);
    const what = `${plain(found.method)} ${plain(found.path)}`;
    if (found.rejection) {
      const { check, found: is, expected } = found.rejection;
      return `${what} was answered with ${plain(found.status)}, by the check of its ${plain(check)}: ${plain(is)}; expected ${plain(expected)}.`;
    }
    if (found.decision !== "refused" || refusing.length === 0) {
      const known = [found.cause, found.reason, found.failure, found.store_failure].filter(Boolean).map(plain);
      const why = known.length > 0 ? ` (${[...new Set(known)].join(", ")})` : "";
      return `${what}: ${plain(found.decision)}${why}, answered with ${plain(found.status)}.`;
    }
    const each = refusing.map((limit) =>
      `${plain(limit.name)} had ${number(limit.had)} of ${number(limit.allowance)} and was asked for ${number(limit.asked)}`);
    return `${what} was refused: ${each.join("; ")}.`;
  }

  function explanation(found) {
    const parts = [element("p", "summary", summary(found))];
    const retry = found.retry_after_ms;
    if (typeof retry === "number") parts.push(element("p", "", `It would pass after ${duration(retry)}.`));
    parts.push(element("p", "quiet",
      `${moment(found.time)}, client ${plain(found.client)}, route ${plain(found.route)}, policy ${plain(found.policy)}, answered with ${plain(found.status)}`));
    if ((found.limits ?? []).length > 0) {
      const columns = [
        ["Limit", "name", (limit) => limit.name],
        ["Key", "path", keyOf],
        ["Algorithm", "", (limit) => limit.algorithm],
        ["Allowance", "number", (limit) => number(limit.allowance)],
        ["Had", "number", (limit) => number(limit.had)],
        ["Asked", "number", (limit) => number(limit.asked)],
        ["Fits", "", (limit) => (limit.fits ? "yes" : limit.enforced ? "no" : "no, not enforced")],
        ["Passes after", "number", (limit) => duration(limit.passes_after_ms)],
      ];
      parts.push(element("div", "scroll", table("Limits of this request", columns, found.limits)));
    }
    const facts = Object.entries(found.facts ?? {}).map(([name, value]) => [name, [value].flat().map(plain).join(", ")]);
    if (facts.length > 0) {
      const columns = [["Fact", "name", (fact) => fact[0]], ["Value", "path", (fact) => fact[1]]];
      parts.push(element("div", "scroll", table("What the policy saw", columns, facts)));
    }
    return parts;
  }

  function refusals(found) {
    const rows = (found.refusals ?? []).slice(0, SHOWN_MAX);
    if (rows.length === 0) {
      put(byId("refusals"), element("p", "nothing", "None since the start."));
      return;
    }
    const button = (row) => {
      const made = element("button", "plain mono", plain(row.request_id).slice(0, 12));
      made.type = "button";
      made.setAttribute("aria-label", `Explain request ${plain(row.request_id)}`);
      made.addEventListener("click", () => {
        byId("explain-id").value = row.request_id;
        explain(row.request_id);
      });
      return made;
    };
    put(byId("refusals"), table("Newest refusals", [
      ["Request", "", button],
      ["Time, UTC", "time", (row) => moment(row.time).replace(/^\S+ | UTC$/g, "")],
      ["Route", "", (row) => row.route],
      ["Policy", "", (row) => row.policy],
      ["Limits", "path", (row) => (row.limits ?? []).join(", ")],
      ["Cause", "", (row) => row.cause],
      ["Status", "number", (row) => row.status],
    ], rows));
  }

  byId("explain-form").addEventListener("submit", (event) => {
    event.preventDefault();
    explain(byId("explain-id").value.trim());
  });

  // ---- Top keys -----------------------------------------------------------------------------------

  function top(found) {
    const lists = [];
    for (const limit of found.limits ?? []) {
      const title = [limit.policy, limit.route, limit.limit].filter(Boolean).map(plain).join(", ");
      for (const [kind, rows, count] of [["most used", limit.used, "units"], ["most refused", limit.refused, "refusals"]]) {
        if (!rows || rows.length === 0) continue;
        const heading = element("h3", "", `${title}: ${kind}`);
        const columns = [
          ["Key", "path mono", keyOf],
          [count === "units" ? "Units" : "Refusals", "number", (row) => number(row[count])],
          ["At most too high by", "number detail", (row) => number(row.error)],
        ];
        lists.push(element("div", "", heading, element("div", "scroll", table(`${title}: keys ${kind}`, columns, rows.slice(0, 10)))));
      }
    }
    const since = found.since_s;
    byId("top-since").textContent = typeof since === "number" ? `of the last ${duration(since * 1000)}` : "";
    put(byId("top-lists"), ...(lists.length > 0 ? lists : [element("p", "nothing", "No limit was asked yet.")]));
  }

  async function ask() {
    for (const [path, section, show] of [["/explain", "explain", refusals], ["/top", "top", top]]) {
      const known = pages.includes(path);
      byId(section).hidden = !known;
      try {
        if (known) show(await json(path));
      } catch {
        // The connection's state is shown above; the next turn asks again.
      }
    }
    reachable();
  }

  setInterval(() => {
    if (stream && !paused && !byId("content").hidden && !document.hidden) ask();
  }, ASK_MS);

  addEventListener("resize", reachable);
  connect();
})();
