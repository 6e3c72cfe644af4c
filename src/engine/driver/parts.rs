//! What stands alike in every text that needs it: around an operator's script, for a ring of
//! sub-windows, for a log.
//!
//! The locals that they use are told where they are made, in `driver`.

/// What an operator's script doesn't see: the same that its sandbox in the embedded engine lacks,
/// as far as it has a name here.
pub(super) const HIDDEN: &str = "redis, server, struct, cjson, cmsgpack, bit, string, table, os, coroutine, pcall, xpcall, load, loadstring, loadfile, dofile, \
                      getmetatable, setmetatable, rawget, rawset, rawequal, getfenv, setfenv, newproxy, collectgarbage, unpack, print, KEYS, ARGV, _G";

/// The `error` of an operator's script: an error that is a table ends a Redis 7.0. Its own helpers
/// have no name that the script could use.
pub(super) const ERROR: &str = "(function(raise, text) return function(message) raise(text(message)) end end)(error, tostring)";

/// Judges what a script answered, as `lua/sandbox.rs` does: before anything is written. It stands
/// behind the scripts, which so do not see it.
pub(super) const SOUND: &str = "\
local function whole(n, ...)
  if select('#', ...) ~= n then error('a script answered ' .. select('#', ...) .. ' values') end
  for k = 1, n do
    local v = select(k, ...)
    if type(v) ~= 'number' or v % 1 ~= 0 or v > 9007199254740992 or v < -9007199254740992 then
      error('a script answered what is no whole number')
    end
  end
end
local function sound_take(...)
  whole(8, ...)
  local f, _, _, _, l, r, b, e = ...
  if (f ~= 0 and f ~= 1) or l < 0 or r < -1 or (f == 1 and (r ~= -1 or e == 0)) or b < 0 or e < -1 then error('a script answered out of range') end
  return ...
end
local function sound_give_back(...)
  whole(5, ...)
  local _, _, _, c, e = ...
  if (c ~= 0 and c ~= 1) or e < -1 then error('a script answered out of range') end
  return ...
end
";

/// A ring of sub-windows: its last one's number, all units that count, then a count of four bytes
/// for each place.
pub(super) const RING: &str = "\
local function ring_count(v, this, buckets)
  local last, total = unpack('<dd', v)
  if last > this or this - last >= buckets then return 0 end
  for w = last + 1, this do total = total - unpack('<I4', v, 17 + 4 * (w % buckets)) end
  return total, last
end
local function ring_leaves(v, this, last, buckets, units)
  local w = this + 1 - buckets
  local place = w % buckets
  -- The oldest first, with room to read eight at the end. What is empty is passed over by sixteen.
  local ring = sub(v, 17 + 4 * place) .. sub(v, 17, 16 + 4 * place) .. rep('\\0', 28)
  local zeros, left, at = rep('\\0', 64), 0, 0
  while at <= last - w do
    if at % 16 == 0 and sub(ring, 4 * at + 1, 4 * at + 64) == zeros then
      at = at + 16
    else
      local a, b, c, d, e, f, g, h = unpack('<I4I4I4I4I4I4I4I4', ring, 4 * at + 1)
      local eight = a + b + c + d + e + f + g + h
      if left + eight >= units then
        for _, count in ipairs({ a, b, c, d, e, f, g, h }) do
          left = left + count
          if left >= units then return w + at + buckets end
          at = at + 1
        end
      end
      left, at = left + eight, at + 8
    end
  end
  return this + buckets
end
local function ring_add(v, this, buckets, units)
  local count, last
  if v then count, last = ring_count(v, this, buckets) end
  local to = this % buckets
  if not last then return pack('<dd', this, units) .. rep('\\0', 4 * to) .. pack('<I4', units) .. rep('\\0', 4 * (buckets - to - 1)) end
  local head = pack('<dd', this, count + units)
  if last == this then
    return head .. sub(v, 17, 16 + 4 * to) .. pack('<I4', unpack('<I4', v, 17 + 4 * to) + units) .. sub(v, 21 + 4 * to)
  end
  local from = (last + 1) % buckets
  if from <= to then
    return head .. sub(v, 17, 16 + 4 * from) .. rep('\\0', 4 * (to - from)) .. pack('<I4', units) .. sub(v, 21 + 4 * to)
  end
  return head .. rep('\\0', 4 * to) .. pack('<I4', units) .. sub(v, 21 + 4 * to, 16 + 4 * from) .. rep('\\0', 4 * (buckets - from))
end
";

/// Opens a block for where the ring still has what was charged.
pub(super) const RING_GIVE_BACK: &str = "\
local this, charged = (now - now % n2) / n2, (taken - taken % n2) / n2
local last, total = unpack('<dd', v)
if last <= this and this - last < n3 and charged <= last and charged + n3 > this then
local at = 16 + 4 * (charged % n3)
local count = unpack('<I4', v, at + 1)
if units > count then units = count end
v = pack('<dd', last, total - units) .. sub(v, 17, at) .. pack('<I4', count - units) .. sub(v, at + 5)
";

/// A log's text for the cell `i`.
pub(super) fn log(text: &str, i: usize) -> String {
    text.replace("OLD", &search("now - n2", "1"))
        .replace("NEW", &search("now", "card"))
        .replace("KEY", &format!("KEYS[{i}]"))
}

/// `high` becomes the number of units up to `bound`, of which the first is one and the last is not:
/// steps that double, then halves.
fn search(bound: &str, step: &str) -> String {
    format!(
        "\
local low, high, step = 0, card - 1, {step}
while high - low > 1 do
local at = low + step
if at >= high then at = low + (high - low - (high - low) % 2) / 2 end
if unpack('<d', call('LINDEX', KEY, at == 1 and '1' or fmt('%d', at))) <= {bound} then low, step = at, step * 2 else high = at end
end
"
    )
}

/// A log is a list in the order of instants, each unit's name behind its instant: what is over and
/// what is in the future goes when anything is added. Counted by what does not count: `new` are
/// those in the future, `old` those that are over.
pub(super) const LOG_COUNT: &str = "\
local card, old, new, oldest = call('LLEN', KEY), 0, 0
if card > 0 then
oldest = unpack('<d', call('LINDEX', KEY, '0'))
local newest = oldest
if card > 1 then newest = unpack('<d', call('LINDEX', KEY, '-1')) end
if newest <= now - n2 then
old = card
elseif oldest > now then
new = card
else
if oldest <= now - n2 then
OLDold = high
end
if newest > now then
NEWnew = card - high
end
end
s1 = card - old - new
end
";

/// When the one leaves that must: mostly the oldest.
pub(super) const LOG_LEAVES: &str = "\
if old + lacking > 1 then oldest = unpack('<d', call('LINDEX', KEY, fmt('%d', old + lacking - 1))) end
s2 = oldest
end
";

/// Removes the first `units` of a take. They stand side by side, so the last of them shows where;
/// where it is not there, all are looked through. A list has no way to remove places but by what
/// stands there.
pub(super) const LOG_GIVE_BACK: &str = "\
if units == 1 then
call('LREM', KEY, '-1', name)
else
local last = call('LPOS', KEY, name .. pack('<I4', units - 1), 'RANK', '-1')
local from, n = 0, 0
if last and last >= units then from = last + 1 - units end
for k, member in ipairs(call('LRANGE', KEY, fmt('%d', from), fmt('%d', last or -1))) do
if sub(member, 1, 24) == name and (#member == 24 or unpack('<I4', member, 25) < units) then
call('LSET', KEY, fmt('%d', from + k - 1), '')
n = n + 1
end
end
if n > 0 then call('LREM', KEY, fmt('%d', n), '') end
end
local newest = call('LINDEX', KEY, '-1')
if newest then
-- What is left lives as if its newest unit had just come: the one that set its lifetime may be gone.
local e = unpack('<d', newest) + n2 + n2
";
