-- The algorithms are pure: no global of Redis, none of LuaJIT, nothing that only one of the two has.
std = "min"
globals = {}
max_line_length = 100
max_cyclomatic_complexity = 20
cache = false
-- The benchmark's Lua is run by nginx, by Redis and by wrk.
files["benches/compare/conf"] = {globals = {"ngx", "redis", "KEYS", "ARGV", "wrk", "init", "request"}}
