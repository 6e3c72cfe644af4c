-- Units ordered by instant: a list of each unit's instant followed by its name. Adding a unit
-- removes those that have expired, and those in the future because the clock stepped back. See
-- `frame.lua`.

--@ read
-- Counts the units that do not count: `new` units are in the future, `old` ones have expired.
local card, old, new, oldest = call('LLEN', KEYS[I]), 0, 0
if card > 0 then
  oldest = unpack('<d', call('LINDEX', KEYS[I], '0'))
  local newest = oldest
  if card > 1 then newest = unpack('<d', call('LINDEX', KEYS[I], '-1')) end
  if newest <= now - n2 then
    old = card
  elseif oldest > now then
    new = card
  else
    -- The first unit has expired and the last has not. A galloping search finds the border: steps
    -- that double, then halves. The same from the other end for units in the future.
    if oldest <= now - n2 then
      local low, high, step = 0, card - 1, 1
      while high - low > 1 do
        local at = low + step
        if at >= high then at = low + (high - low - (high - low) % 2) / 2 end
        local place = at == 1 and '1' or fmt('%d', at)
        if unpack('<d', call('LINDEX', KEYS[I], place)) <= now - n2 then
          low, step = at, step * 2
        else
          high = at
        end
      end
      old = high
    end
    if newest > now then
      local low, high, step = 0, card - 1, card
      while high - low > 1 do
        local at = low + step
        if at >= high then at = low + (high - low - (high - low) % 2) / 2 end
        local place = at == 1 and '1' or fmt('%d', at)
        if unpack('<d', call('LINDEX', KEYS[I], place)) <= now then
          low, step = at, step * 2
        else
          high = at
        end
      end
      new = card - high
    end
  end
  s1 = card - old - new
end
local lacking = s1 + cost - n1
if cost == 0 then lacking = lacking + 1 elseif lacking == 0 then lacking = 1 end
if lacking > 0 and lacking <= s1 then
  -- The instant of the unit that must leave, mostly the oldest.
  if old + lacking > 1 then
    oldest = unpack('<d', call('LINDEX', KEYS[I], fmt('%d', old + lacking - 1)))
  end
  s2 = oldest
end

--@ keep
-- The name of the first unit; how many have expired; how many are added; how many are in the
-- future.
x_I, y_I, z_I, writes_I = pack('<d', now) .. sub(ARGV[I], -16), old, cost, new
--+ lifetime
-- A log lives until at least two periods after its oldest unit. If the oldest has expired, the
-- lifetime is checked. When it is set, it reaches a quarter of a period further, so that it is
-- rarely set.
if new == 0 and card > 0 and (old == 0 or call('PEXPIRETIME', KEYS[I]) >= expires_I) then
  expires_I = 0
else
  expires_I = expires_I + (n2 * unit - n2 * unit % 4000) / 4000
end

--@ write
if writes_I > 0 then
  call('LTRIM', KEYS[I], fmt('%d', y_I), fmt('%d', -1 - writes_I))
  y_I = 0
end
-- The first unit is named x_I, the others x_I and a number. Lua's stack limits one call to a
-- thousand; mostly there is only one.
if z_I == 1 then
  call('RPUSH', KEYS[I], x_I)
else
  local batch, n = { x_I }, 1
  for k = 1, z_I - 1 do
    n = n + 1
    batch[n] = x_I .. pack('<I4', k)
    if n == 1000 then
      call('RPUSH', KEYS[I], spread(batch, 1, n))
      n = 0
    end
  end
  if n > 0 then call('RPUSH', KEYS[I], spread(batch, 1, n)) end
end
-- After the push, so that the list is never empty and keeps its key and lifetime.
if y_I == 1 then
  call('LPOP', KEYS[I])
elseif y_I > 1 then
  call('LTRIM', KEYS[I], fmt('%d', y_I), '-1')
end
if expires_I > 0 then call('PEXPIREAT', KEYS[I], fmt('%d', expires_I)) end

--@ give_back
-- The units of a take are adjacent, so the position of the last one is enough. If it is not there,
-- the whole list is searched. Lists can't remove by position, only by value, so units are
-- overwritten with '' first.
if unit == 1000 then taken = (taken - taken % 1000) / 1000 end
local name = pack('<d', taken) .. sub(ARGV[I], -16)
if units == 1 then
  call('LREM', KEYS[I], '-1', name)
else
  local last = call('LPOS', KEYS[I], name .. pack('<I4', units - 1), 'RANK', '-1')
  local from, n = 0, 0
  if last and last >= units then from = last + 1 - units end
  for k, member in ipairs(call('LRANGE', KEYS[I], fmt('%d', from), fmt('%d', last or -1))) do
    if sub(member, 1, 24) == name and (#member == 24 or unpack('<I4', member, 25) < units) then
      call('LSET', KEYS[I], fmt('%d', from + k - 1), '')
      n = n + 1
    end
  end
  if n > 0 then call('LREM', KEYS[I], fmt('%d', n), '') end
end
local newest = call('LINDEX', KEYS[I], '-1')
if newest then
  -- The rest lives as if its newest unit had just been added: the unit that set the lifetime may be
  -- gone.
  local expires_I = unpack('<d', newest) + n2 + n2
  --+ lifetime
  call('PEXPIREAT', KEYS[I], fmt('%d', expires_I), 'GT')
end
