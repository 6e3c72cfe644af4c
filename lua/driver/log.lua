-- Units in the order of their instants: a list, each unit's name behind its instant. Units that are
-- over, or in the future because the clock stepped back, go when another is added. See `frame.lua`.

--@ read
-- Counted by what does not count: `new` units lie in the future, `old` ones are over.
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
    -- The first unit is over and the last is not: the border is found by steps that double, and
    -- then by halves. The same for the future, from the other end.
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
  -- When the unit leaves that must: mostly the oldest.
  if old + lacking > 1 then
    oldest = unpack('<d', call('LINDEX', KEYS[I], fmt('%d', old + lacking - 1)))
  end
  s2 = oldest
end

--@ keep
-- The name of the first unit; how many are over; how many are added; how many lie in the future.
x_I, y_I, z_I, writes_I = pack('<d', now) .. sub(ARGV[I], -16), old, cost, new
--+ lifetime
-- A log lives until two periods after its oldest unit, or longer. Where the oldest is over its
-- lifetime is looked at; where it is set it reaches a quarter of a period further, so that it is
-- seldom set.
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
-- The first unit bears the name x_I, the others a number behind it. At most a thousand go into one
-- call, for Lua's stack; mostly there is one.
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
-- After the push: the key stays, and its lifetime with it.
if y_I == 1 then
  call('LPOP', KEYS[I])
elseif y_I > 1 then
  call('LTRIM', KEYS[I], fmt('%d', y_I), '-1')
end
if expires_I > 0 then call('PEXPIREAT', KEYS[I], fmt('%d', expires_I)) end

--@ give_back
-- The units of a take stand side by side, so the last of them shows where; where it is not there,
-- all are looked through. A list has no way to remove places but by what stands there.
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
  -- What is left lives as if its newest unit had just come: the one that set its lifetime may be
  -- gone.
  local expires_I = unpack('<d', newest) + n2 + n2
  --+ lifetime
  call('PEXPIREAT', KEYS[I], fmt('%d', expires_I), 'GT')
end
