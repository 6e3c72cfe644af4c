//! What replaces Redis' own globals for an operator's script.

/// The globals hidden from an operator's script: those that its sandbox in the embedded engine
/// lacks too, as far as they exist on Redis.
pub(super) const NAMES: &str = "redis, server, struct, cjson, cmsgpack, bit, string, table, os, coroutine, pcall, xpcall, load, loadstring, loadfile, dofile, \
                      getmetatable, setmetatable, rawget, rawset, rawequal, getfenv, setfenv, newproxy, collectgarbage, unpack, print, KEYS, ARGV, _G";

/// The `error` of an operator's script. It converts its argument to text, because an error that is
/// a table crashes Redis 7.0, and names the line of its caller. Its own helpers are parameters, so
/// that the script can't name them.
pub(super) const ERROR: &str = "(function(raise, text) return function(message) raise(text(message), 2) end end)(error, tostring)";
