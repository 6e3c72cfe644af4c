// An Express middleware that asks Weir before each request: `app.use(limit(weir, "api"))`. `own`
// are the fields that only the policy may set, in lower case, such as `["x-plan"]`: one that a
// client sends does not reach the application.
import { WeirError } from "./weir.mjs";

export function limit(weir, domain, { own = [] } = {}) {
  return (req, res, next) => {
    const facts = { method: req.method, path: req.baseUrl + req.path };
    // Set Express's `trust proxy` for this to be the client's address behind a proxy.
    if (req.ip) facts["client-ip"] = req.ip.replace(/^::ffff:(?=\d+\.)/, "");
    const key = req.get("x-api-key");
    if (key !== undefined) facts["header.x-api-key"] = key;
    const answer = (decision) => {
      for (const [name] of decision.fields) res.removeHeader(name);
      for (const [name, value] of decision.fields) res.appendHeader(name, value);
      if (!decision.allowed) {
        res.statusCode = decision.status;
        return res.end(decision.body ?? "");
      }
      for (const name of own) delete req.headers[name];
      for (const [name, value] of decision.requestFields) req.headers[name.toLowerCase()] = value;
      next();
    };
    const fail = (cause) => {
      if (cause instanceof WeirError && cause.status === 400) {
        // Of what whoever asks can choose, only a path can be none.
        res.statusCode = 400;
        res.setHeader("content-type", "text/plain");
        return res.end("bad request\n");
      }
      // Wrapped, as Express would answer with an error's own `status`, here that of Weir's answer.
      next(new Error("Weir could not be asked", { cause }));
    };
    weir.decide(domain, { facts }).then(answer).catch(fail);
  };
}
