-- The code around the algorithms on Redis: it reads all cells, decides, and writes only if all
-- agreed.
--
-- `engine/driver.rs` generates a script from these templates. It unrolls them for the cells of a
-- call, without a table per cell, since that costs least inside Redis. `--@ NAME` begins a section.
-- `--+ NAME` inserts the section of that name, from the file of the cell's kind (`numbers.lua`,
-- `log.lua`, `buckets.lua`, `leases.lua`) or from this one. The placeholders:
--
-- I            a cell's number: in KEYS[I], ARGV[I], and at the end of a local's name, as in fits_I
-- NUMBERS      the program's numbers n1, n2, ..., as many as it reads
-- FORMAT       the packed doubles of a cell's argument
-- TAKE(), GIVE_BACK(), CHARGE()   the program's functions
-- OWE()        a parent's CHARGE(), in a script that takes
-- fits_BEFORE  fits_I of the cell before
-- STORED       the expression for the cell's string, nil if there is none
-- LOAD_STATE(), PACKED  the state numbers that a program uses: unpacked into s1, s2, s3; packed
--              from x_I, y_I, z_I
--
-- KEYS: one per cell. ARGV: one per cell, packed doubles: its unit (microseconds); shadow (0 or 1),
-- or in a give-back the instant of the take (microseconds); cost or units; the program's numbers;
-- then, for kinds that store units by name, the sixteen bytes of the member's name.
--
-- Nine locals per cell outlive its block, so that sixteen cells stay below Lua's limit of two
-- hundred: fits_I; x_I, y_I, z_I, what is to be written; left_I; retry_I; reset_I (when all is
-- back); expires_I (an instant; 0: the lifetime is unchanged, below 0: never); writes_I, truthy if
-- the cell is to be written.

--@ time
-- Redis' time, read once per call.
local t = call('TIME')
local us = t[1] * 1000000 + t[2]

--@ take
local fits_I, x_I, y_I, z_I, left_I, retry_I, reset_I, expires_I, writes_I
do
  local unit, shadow, cost, NUMBERS = unpack(FORMAT, ARGV[I])
  local now, s1, s2, s3 = us, 0, 0, 0
  if unit == 1000 then now = (us - us % 1000) / 1000 end
  --+ read
  --+ ask
end

--@ ask
-- Decides a take, and says whether it is to be written.
fits_I, x_I, y_I, z_I, left_I, retry_I, reset_I, expires_I = TAKE(s1, s2, s3, now, cost, NUMBERS)
if fits_I == 0 then
  if shadow == 0 or retry_I == OUTSIDE then ok = 0 end
  --+ extend
elseif cost > 0 then
  writes_I = true
  --+ keep
end

--@ take_of_parent
-- After its assured cell. Where that fits, this one is charged instead of asked, so that nobody is
-- kept from what is assured by those who borrow.
local fits_I, x_I, y_I, z_I, left_I, retry_I, reset_I, expires_I, writes_I
do
  local unit, shadow, cost, NUMBERS = unpack(FORMAT, ARGV[I])
  local now, s1, s2, s3 = us, 0, 0, 0
  if unit == 1000 then now = (us - us % 1000) / 1000 end
  --+ read
  if fits_BEFORE == 1 then
    local charged, _
    x_I, y_I, z_I, charged, expires_I = OWE(s1, s2, s3, now, cost, NUMBERS)
    if charged == OUTSIDE then
      fits_I, left_I, retry_I, reset_I, ok = 0, 0, OUTSIDE, 0, 0
    else
      -- Where the debt has no room for all of it, nothing is charged: a part would be given back as
      -- the whole.
      if charged < cost then x_I, y_I, z_I = s1, s2, s3 end
      _, _, _, _, left_I, retry_I, reset_I = TAKE(x_I, y_I, z_I, now, 0, NUMBERS)
      if retry_I == OUTSIDE then
        -- What is owed comes back in a period that is not named.
        fits_I, ok = 0, 0
      elseif charged < cost then
        fits_I, retry_I = 1, UNCHARGED
      else
        fits_I, retry_I = 1, -1
        if cost > 0 then
          writes_I = true
          --+ keep
        end
      end
    end
  else
    --+ ask
  end
end

--@ look
-- Like a take, but nothing is written: what is left, and when all is back, is reported for the
-- current state. The next two sections follow it, the first only for a parent.
local fits_I, left_I, retry_I, reset_I
do
  local unit, shadow, cost, NUMBERS = unpack(FORMAT, ARGV[I])
  local now, s1, s2, s3, _ = us, 0, 0, 0
  if unit == 1000 then now = (us - us % 1000) / 1000 end
  --+ read
  fits_I, _, _, _, left_I, retry_I, reset_I, _ = TAKE(s1, s2, s3, now, cost, NUMBERS)

--@ look_after_assured
  if fits_BEFORE == 1 and retry_I ~= OUTSIDE then fits_I, retry_I = 1, -1 end

--@ look_ends
  if fits_I == 1 and cost > 0 then
    _, _, _, _, left_I, _, reset_I = TAKE(s1, s2, s3, now, 0, NUMBERS)
  end
  if fits_I == 0 and (shadow == 0 or retry_I == OUTSIDE) then ok = 0 end
end

--@ lease
-- Of one cell, whose cost is what the first waiting request needs. If that fits, more is taken:
-- what all waiting requests need, or half of the holder's share of what is left if that is more.
-- `weir_lease::units_granted` is the same in Rust.
--
-- KEYS[2] has the holders by the instant at which their leases end at the latest (milliseconds),
-- and KEYS[3] the units of each. ARGV[2]: what all waiting requests need, the most units, the
-- longest life (milliseconds). ARGV[3]: the holder's name.
local fits_I, x_I, y_I, z_I, left_I, retry_I, reset_I, expires_I, writes_I
local units, holders = 0, 0
do
  local unit, _, cost, NUMBERS = unpack(FORMAT, ARGV[I])
  local needed, most, life = unpack('<ddd', ARGV[2])
  local now, s1, s2, s3 = us, 0, 0, 0
  if unit == 1000 then now = (us - us % 1000) / 1000 end
  do
    --+ read
    fits_I, x_I, y_I, z_I, left_I, retry_I, reset_I, expires_I =
      TAKE(s1, s2, s3, now, cost, NUMBERS)
    if fits_I == 0 then
      --+ extend
    end
  end
  if fits_I == 1 then
    local ms, least = (us - us % 1000) / 1000, cost
    local ends = fmt('%d', ms + life)
    call('ZREMRANGEBYSCORE', KEYS[2], '-inf', fmt('%d', ms))
    call('ZADD', KEYS[2], ends, ARGV[3])
    -- ZCOUNT, as a user of Redis that may run takes has no right to ZCARD.
    holders = call('ZCOUNT', KEYS[2], '-inf', '+inf')
    local all = least + left_I
    units = (all - all % (2 * holders)) / (2 * holders)
    if units > most then units = most end
    if units < needed then units = needed end
    if units > all then units = all end
    -- The units of holders that have gone are dropped now and then.
    if call('ZCOUNT', KEYS[3], '-inf', '+inf') > 2 * holders + 16 then call('DEL', KEYS[3]) end
    call('ZADD', KEYS[3], fmt('%d', units), ARGV[3])
    call('PEXPIREAT', KEYS[2], ends)
    call('PEXPIREAT', KEYS[3], ends)
    cost, s1, s2, s3 = units, 0, 0, 0
    --+ read
    fits_I, x_I, y_I, z_I, left_I, retry_I, reset_I, expires_I =
      TAKE(s1, s2, s3, now, cost, NUMBERS)
    writes_I = true
    --+ keep
    --+ again
  end
end

--@ again
-- Sliding windows say themselves when the next unit is free.

--@ write
if writes_I then
  --+ write
end

--@ charge
-- For the kinds whose units may be owed. What is read and written is as in a take.
local charged_I
do
  local unit, _, cost, NUMBERS = unpack(FORMAT, ARGV[I])
  local now, s1, s2, s3 = us, 0, 0, 0
  if unit == 1000 then now = (us - us % 1000) / 1000 end
  --+ read
  local x_I, y_I, z_I, expires_I, writes_I
  x_I, y_I, z_I, charged_I, expires_I = CHARGE(s1, s2, s3, now, cost, NUMBERS)
  if charged_I > 0 then
    cost, writes_I = charged_I, true
    --+ keep
    --+ write
  end
end

--@ give_back_state
-- For the kinds stored as strings.
do
  local unit, taken, units, NUMBERS = unpack(FORMAT, ARGV[I])
  local v = call('GET', KEYS[I])
  if v then
    local now = us
    if unit == 1000 then
      now, taken = (us - us % 1000) / 1000, (taken - taken % 1000) / 1000
    end
    --+ give_back
  end
end

--@ give_back_members
-- For the kinds that store each unit by name.
do
  local unit, taken, units, NUMBERS = unpack(FORMAT, ARGV[I])
  if units > 0 then
    --+ give_back
  end
end

--@ renew
-- Leases only.
do
  local unit, _, units, NUMBERS = unpack(FORMAT, ARGV[I])
  local now = us
  if unit == 1000 then now = (us - us % 1000) / 1000 end
  --+ renew
end

--@ extend
-- Only numbers have a lifetime that depends on the quota.

--@ lifetime
-- Converts from the limit's unit to milliseconds, rounded up, and adds a second.
if expires_I > 0 then
  if unit == 1000 then
    expires_I = expires_I + 1000
  else
    expires_I = (expires_I + (1000 - expires_I % 1000) % 1000) / 1000 + 1000
  end
end

--@ set
-- Writes a string that lives until expires_I, or for its present lifetime, or for ever. With the
-- present lifetime the string exists and has the same length, so it can be overwritten in place,
-- which is cheapest.
if expires_I > 0 then
  call('SET', KEYS[I], value, 'PXAT', fmt('%d', expires_I))
elseif expires_I == 0 then
  call('SETRANGE', KEYS[I], '0', value)
else
  call('SET', KEYS[I], value)
end

--@ sound
-- Calls an operator's script, and checks what it answered before anything is written, as
-- `engine/lua/sandbox.rs` does in memory. Where a script fails there is no answer, and `wrong` is
-- the reply that says so: its name, and why. This follows the scripts, so they cannot see it.
local wrong
local function fail(name, why)
  -- Lua's own messages begin with a line of this text, where the file's first line is `first_line`.
  local function place(line) return name .. '.lua:' .. (line - first_line(name) + 1) end
  why = string.sub(string.gsub(tostring(why), '^user_script:(%d+)', place), 1, 200)
  wrong = wrong or redis.error_reply('WEIRSCRIPT ' .. name .. ' ' .. string.gsub(why, '%c', ' '))
end
local function unsound(n, ...)
  if select('#', ...) ~= n then
    return 'answered ' .. select('#', ...) .. ' values instead of ' .. n
  end
  for k = 1, n do
    local v = select(k, ...)
    if type(v) ~= 'number' or v % 1 ~= 0 or v > 9007199254740992 or v < -9007199254740992 then
      return 'answer ' .. k .. ' is not a whole number of at most 2^53'
    end
  end
end
local function sound_take(name, ran, ...)
  if not ran then return fail(name, (...)) end
  local why = unsound(8, ...)
  if why then return fail(name, 'take: ' .. why) end
  local f, _, _, _, l, r, b, e = ...
  local odd = f == 1 and (r ~= -1 or e == 0)
  if (f ~= 0 and f ~= 1) or l < 0 or r < -1 or odd or b < 0 or e < -1 then
    return fail(name, 'take: an answer is out of range')
  end
  return ...
end
local function sound_give_back(name, ran, ...)
  if not ran then return fail(name, (...)) end
  local why = unsound(5, ...)
  if why then return fail(name, 'give_back: ' .. why) end
  local _, _, _, c, e = ...
  if (c ~= 0 and c ~= 1) or e < -1 then
    return fail(name, 'give_back: an answer is out of range')
  end
  return ...
end

--@ sound_or_ends
-- After a script was asked by a take or a look: nothing has been written.
if wrong then return wrong end
