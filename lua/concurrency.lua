-- concurrency: at most `most` units in flight, over all proxies.
--
-- Promises   Exact while each holder renews its leases within their length. A holder that dies
--            holds its units until its leases end, and no longer.
-- Numbers    most (units), a lease's length (time units), slack (time units): how much later than
--            now + length one may end and count.
-- State      A sorted set of leases with the instants at which they end (a counter's leases in
--            memory), a lease for each unit. The store counts those that end within (now, now +
--            length + slack]; one that ends later was written by a clock that has stepped back
--            since, goes with the next that is written, and comes back when it is renewed. With a
--            slack (in memory, where nothing is renewed because nothing is left behind) a clock
--            that steps back forgets nobody.
-- Lifetime   One length beyond the end of the last lease.
-- take       (leases, 0, 0, now, cost, numbers) -> fits (0 or 1), three zeros, units left if this
--            is written, -1 (when another holder ends is not known), 0, the instant at which the
--            set may be forgotten. Cost 0 is decided as 1 and writes nothing. A cost above `most`
--            never fits.
-- give_back  The store removes the take's own leases, by name; nothing is left to decide.
-- Memory     A lease is a member: about 90 bytes on Redis, 48 in memory for each take. Redis:
--            ZCOUNT, and where it fits ZADD and PEXPIREAT; a ZADD and PEXPIREAT for each renewal, a
--            ZREM at the end.
-- Source     Leases (Gray and Cheriton, 1989); nginx' limit_conn and Envoy's circuit breaker count
--            the same in one process.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: reads and writes nothing. The last line stands alone, as
-- the driver's generator needs it.

local function take(count, _, _, now, cost, most, length, slack)
  local ask = cost
  if ask == 0 then ask = 1 end
  local fits, left = 0, most - count
  if ask <= left then
    fits, left = 1, left - cost
  end
  if left < 0 then left = 0 end -- the limit was edited to less
  return fits, 0, 0, 0, left, -1, 0, now + length + length + slack
end

local function give_back()
  return 0, 0, 0, 0, 0
end

return { take = take, give_back = give_back }
