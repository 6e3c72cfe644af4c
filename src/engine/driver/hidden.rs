//! What an operator's script on Redis is shown in the place of Redis' own globals.

/// What an operator's script doesn't see: the same that its sandbox in the embedded engine lacks,
/// as far as it has a name here.
pub(super) const NAMES: &str = "redis, server, struct, cjson, cmsgpack, bit, string, table, os, coroutine, pcall, xpcall, load, loadstring, loadfile, dofile, \
                      getmetatable, setmetatable, rawget, rawset, rawequal, getfenv, setfenv, newproxy, collectgarbage, unpack, print, KEYS, ARGV, _G";

/// The `error` of an operator's script: an error that is a table ends a Redis 7.0. Its own helpers
/// have no name that the script could use.
pub(super) const ERROR: &str = "(function(raise, text) return function(message) raise(text(message)) end end)(error, tostring)";
