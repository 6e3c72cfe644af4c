-- The algorithms are pure: no global of Redis, none of LuaJIT, nothing that only one of the two has.
std = "min"
globals = {}
max_line_length = 100
max_cyclomatic_complexity = 20
cache = false
-- The driver's templates are sections of one script: they share its locals, and placeholders stand
-- for what is filled in (`lua/driver/frame.lua`).
files["lua/driver"] = {
  globals = {
    "now", "s1", "s2", "s3", "n1", "n2", "n3", "x_I", "y_I", "z_I", "writes_I", "expires_I", "retry_I", "ok",
    "taken", "units", "v", "_",
  },
  read_globals = {
    "KEYS", "ARGV", "I", "NUMBERS", "FORMAT", "STORED", "LOAD_STATE", "PACKED", "OUTSIDE",
    "PURGE_EVERY", "TAKE", "GIVE_BACK", "CHARGE", "OWE", "UNCHARGED", "fits_BEFORE", "shadow", "call", "fmt", "pack", "unpack", "sub", "rep",
    "spread", "us", "cost", "unit", "value", "ends", "left_I", "least", "first_line", "redis",
  },
  -- What one section makes another one uses.
  ignore = { "2..", "311", "4..", "542" },
  max_cyclomatic_complexity = 60,
}
-- The benchmark's Lua is run by nginx, by Redis and by wrk.
files["benches/compare/conf"] = {globals = {"ngx", "redis", "KEYS", "ARGV", "wrk", "init", "request"}}
