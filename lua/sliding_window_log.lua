-- sliding_window_log: at most `quota` units in any span of one period; each unit is remembered.
--
-- Promises   Exact: no span of one period, wherever it begins, holds more than `quota` units. Many
--            units in one microsecond are many members.
-- Numbers    quota (units, at most 10,000), period (time units).
-- State      Units with their instants, in their order: a list on Redis, a counter's log in memory.
--            The store counts those within (now - period, now]; what is older, or in the future
--            because the clock stepped back, is not seen, and goes when a unit is written.
-- Lifetime   On Redis at least one period beyond the last unit, so that it is seldom set, and two
--            and a quarter at most.
-- take       (units within the period, the instant of the one that must leave before the cost fits,
--            or before the next unit does where this take would leave nothing, 0, now, cost,
--            numbers) -> fits (0 or 1), three zeros, units left if this is written, time units
--            until it would fit, or until a unit is back where it fits and leaves nothing (-1:
--            units are left, or it never can fit), time units until all is back (a whole period
--            where any unit is in it), the instant at which the set may be forgotten. Cost 0 is
--            decided as 1 and writes nothing. A cost above the quota never fits.
-- give_back  The store removes the take's own units, by name; nothing is left to decide.
-- Memory     A unit is a member: about 30 bytes on Redis, 48 in memory for each take. Redis: LLEN,
--            the oldest by LINDEX, and the newest where there are two; another LINDEX or a few
--            where the oldest is over, or where it is not the one that must leave; where it fits
--            RPUSH, LPOP or LTRIM of what is over, and PEXPIREAT a few times in a period.
-- Source     The sliding log of the literature. Redis' sorted sets are used for it mostly; a clock
--            that only goes on needs no sorting.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: reads and writes nothing. The last line stands alone, as
-- the driver's generator needs it.

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

return { take = take, give_back = give_back }
