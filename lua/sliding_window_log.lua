-- sliding_window_log: at most `quota` units in any span of one period; each unit is remembered.
--
-- Promises   Exact: no span of one period, wherever it begins, holds more than `quota` units. Many units in one microsecond are many
--            members.
-- Numbers    quota (units, at most 10,000), period (time units).
-- State      A sorted set of units with their instants (a counter's log in memory). The store counts those within (now - period,
--            now]; what is older, or in the future because the clock stepped back, is not seen, and goes when a unit is written.
-- Lifetime   At least one period beyond the last unit, at most two.
-- take       (units within the period, the instant of the one that must leave before the cost fits, 0, now, cost, numbers) -> fits (0
--            or 1), three zeros, units left if this is written, time units until it would fit (-1: it fits, or never can), time units
--            until all is back (a whole period where any unit is in it), the instant at which the set may be forgotten. Cost 0 is
--            decided as 1 and writes nothing. A cost above the quota never fits.
-- give_back  The store removes the take's own members, by name; nothing is left to decide.
-- Memory     A unit is a member: about 90 bytes on Redis, 48 in memory for each take. Redis: ZCARD and the oldest by ZRANGE, a ZCOUNT
--            of what is over and one of what is in the future, each where there may be any; where it fits ZADD, and once a period
--            or where some are over PEXPIREAT; once in eight takes with some that are over a ZREMRANGEBYSCORE. A unit's name
--            begins with its instant, so that no score has to be printed.
-- Source     The sliding log of the literature, as Redis' sorted sets are used for it, with a unit as the member and not its time.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers in Redis' Lua 5.1 and in LuaJIT.
-- Pure: reads and writes nothing. The last line stands alone, as the driver's generator needs it.

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
  count = count + cost
  local reset = 0
  if count > 0 then reset = period end
  return 1, 0, 0, 0, quota - count, -1, reset, now + period + period
end

local function give_back()
  return 0, 0, 0, 0, 0
end

return { take = take, give_back = give_back }
