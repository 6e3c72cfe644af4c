-- sliding_window_log: at most `quota` units in any span of one period. Each unit is stored.
--
-- Promises   Exact: no span of one period, wherever it starts, holds more than `quota` units. Units
--            taken in the same microsecond are stored separately.
-- Numbers    quota (units, at most 10,000), period (time units), debt (units that charges may take
--            beyond the quota, at most 10,000).
-- State      Units with their instants, in order: a list on Redis, a counter's log in memory. The
--            store counts those within (now - period, now]. Older units, and units in the future
--            because the clock stepped back, do not count, and are removed when a unit is written.
-- Lifetime   On Redis at least one period beyond the last unit, and at most two and a quarter, so
--            that it is rarely set.
-- take       (units within the period, the instant of the unit that must leave before the cost
--            fits, or before one more unit does if this take leaves nothing, 0, now, cost, numbers)
--            -> fits (0 or 1), three zeros, units left if this is written, time units until it
--            would fit, or until a unit is back if it fits and leaves nothing (-1: units are left,
--            or it never can fit), time units until all is back (a whole period if it holds any
--            unit), the instant at which the log may be forgotten. Cost 0 is decided as 1 and
--            writes nothing. A cost above the quota never fits.
-- give_back  The store removes the take's own units, by name, so there is nothing to decide.
-- charge     (units within the period, 0, 0, now, units, numbers) -> three zeros, units charged,
--            the instant at which the log may be forgotten. Always charges, into debt if need be,
--            as many units as the debt has room for. They leave one period later, as all others do.
-- Memory     Each unit is a member: about 30 bytes on Redis; in memory 48 bytes per take. Redis:
--            LLEN, LINDEX for the oldest, and for the newest if there are two or more; a few more
--            LINDEX if the oldest has expired or is not the unit that must leave; if it fits,
--            RPUSH, LPOP or LTRIM of expired units, and PEXPIREAT a few times per period.
-- Source     The sliding log of the literature. It is mostly built on Redis' sorted sets; with a
--            clock that only goes forward, a list needs no sorting.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the arguments. The driver's
-- generator needs the last line on its own.

local function take(count, leaves, _, now, cost, quota, period)
  local ask = cost
  if ask == 0 then ask = 1 end
  if count + ask > quota then
    local left, retry, reset = quota - count, -1, 0
    if left < 0 then left = 0 end -- the quota was edited to less
    if ask <= quota then retry = leaves + period - now end
    if count > 0 then reset = period end
    return 0, 0, 0, 0, left, retry, reset, now + period + period
  end
  local retry, reset = -1, 0
  if count + cost == quota then
    retry = period
    if count > 0 then retry = leaves + period - now end
  end
  count = count + cost
  if count > 0 then reset = period end
  return 1, 0, 0, 0, quota - count, retry, reset, now + period + period
end

local function give_back()
  return 0, 0, 0, 0, 0
end

local function charge(count, _, _, now, units, quota, period, debt)
  local room = quota + debt - count
  if units > room then units = room end
  if units < 0 then units = 0 end
  return 0, 0, 0, units, now + period + period
end

return { take = take, give_back = give_back, charge = charge }
