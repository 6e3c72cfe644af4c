-- concurrency: at most `most` units in flight, over all proxies.
--
-- Promises   Exact while each holder renews its leases before they end. A holder that dies holds
--            its units until its leases end, and no longer.
-- Numbers    most (units), length of a lease (time units), slack (time units): a lease counts if it
--            ends at most length + slack from now.
-- State      A sorted set of leases by the instant at which they end (in memory, a counter's
--            leases), one lease per unit. The store counts those that end within (now, now + length
--            + slack]. A lease that ends later was written before the clock stepped back: the next
--            write removes it, and renewing it adds it again. In memory nothing is renewed, because
--            no lease outlives the process; there a slack keeps all leases counted when the clock
--            steps back.
-- Lifetime   One length beyond the end of the last lease.
-- take       (leases, 0, 0, now, cost, numbers) -> fits (0 or 1), three zeros, units left if this
--            is written, -1 (it is unknown when another holder finishes), 0, the instant at which
--            the set may be forgotten. Cost 0 is decided as 1 and writes nothing. A cost above
--            `most` never fits.
-- give_back  The store removes the take's own leases, by name, so there is nothing to decide.
-- charge     (leases, 0, 0, now, units, numbers) -> the leases after it, two zeros, the units that
--            were charged, the instant at which the set may be forgotten. Only of a parent, for
--            what its children are assured: whether they fit or not, up to twice `most` in all.
-- Memory     Each lease is a member: about 90 bytes on Redis; in memory 48 bytes per take. Redis:
--            ZCOUNT, and if it fits ZADD and PEXPIREAT; ZADD and PEXPIREAT for each renewal; ZREM
--            at the end.
-- Source     Leases (Gray and Cheriton, 1989). nginx' limit_conn and Envoy's circuit breakers count
--            the same within one process.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the arguments. The driver's
-- generator needs the last line on its own.

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

local function charge(count, _, _, now, units, most, length, slack)
  local room = most + most - count
  if room < 0 then room = 0 end -- the limit was edited to less
  if units > room then units = room end
  return count + units, 0, 0, units, now + length + length + slack
end

return { take = take, give_back = give_back, charge = charge }
