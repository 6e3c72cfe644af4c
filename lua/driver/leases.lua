-- Leases: a sorted set of each unit's name by the instant at which its lease ends. See `frame.lua`.

--@ read
s1 = call('ZCOUNT', KEYS[I], fmt('(%d', now), fmt('%d', now + n2 + n3))

--@ keep
-- When the new leases end; the instant up to which others have expired; how many are added; the
-- instant after which a lease was written before the clock stepped back.
x_I, y_I, z_I, writes_I = fmt('%d', now + n2), now, cost, fmt('(%d', now + n2 + n3)
--+ lifetime

--@ write
local ends, units = x_I, z_I
--+ add
if us % PURGE_EVERY == 0 or z_I > 1 then
  call('ZREMRANGEBYSCORE', KEYS[I], '-inf', fmt('%d', y_I))
end
-- If the lifetime does not grow, it was set in this very millisecond, or never, or before the clock
-- stepped back.
local lives = fmt('%d', expires_I)
if call('PEXPIREAT', KEYS[I], lives, 'GT') == 0 and call('PEXPIRETIME', KEYS[I]) ~= expires_I then
  call('ZREMRANGEBYSCORE', KEYS[I], writes_I, '+inf')
  call('PEXPIREAT', KEYS[I], lives)
end

--@ add
-- Adds `units` leases that end at `ends`. A name begins with four bytes of a number: the first
-- lease has the name itself, and each further one the next number, so that some of them can be
-- renewed or given back.
local name = sub(ARGV[I], -16)
if units == 1 then
  call('ZADD', KEYS[I], ends, name)
else
  local first, rest = unpack('<I4', name), sub(name, 5)
  local batch, n = {}, 0
  for k = 0, units - 1 do
    batch[n + 1], batch[n + 2], n = ends, pack('<I4', first + k) .. rest, n + 2
    if n == 1000 then
      call('ZADD', KEYS[I], spread(batch, 1, n))
      n = 0
    end
  end
  if n > 0 then call('ZADD', KEYS[I], spread(batch, 1, n)) end
end

--@ give_back
local name = sub(ARGV[I], -16)
if units == 1 then
  call('ZREM', KEYS[I], name)
else
  local first, rest = unpack('<I4', name), sub(name, 5)
  local batch, n = {}, 0
  for k = 0, units - 1 do
    n = n + 1
    batch[n] = pack('<I4', first + k) .. rest
    if n == 1000 then
      call('ZREM', KEYS[I], spread(batch, 1, n))
      n = 0
    end
  end
  if n > 0 then call('ZREM', KEYS[I], spread(batch, 1, n)) end
end

--@ renew
if units > 0 then
  local expires_I, ends = now + n2 + n2, fmt('%d', now + n2)
  --+ add
  --+ lifetime
  local lives = fmt('%d', expires_I)
  if call('PEXPIREAT', KEYS[I], lives, 'GT') == 0 and call('PTTL', KEYS[I]) < 0 then
    call('PEXPIREAT', KEYS[I], lives)
  end
end
