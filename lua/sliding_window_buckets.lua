-- sliding_window_buckets: at most `quota` units in the last `buckets` sub-windows, including the
-- current one.
--
-- Promises   Over-admits by at most one sub-window: a span of one period holds at most `quota`
--            units plus the units of one sub-window that it only partly covers. Never admits fewer
--            than `quota` units in `buckets` whole sub-windows. Its memory does not grow with the
--            traffic.
-- Numbers    quota (units), length of a sub-window (time units: the period divided by `buckets`,
--            rounded up), buckets (1 to 1,000), debt (units that charges may take beyond the
--            quota).
-- State      The number of the last sub-window, counted from 1970, the sum of all units that count,
--            and a ring of counts, packed. The store drops the sub-windows that have left. A number
--            in the future proves that the clock stepped back: the ring starts again empty.
-- Lifetime   Two whole periods from the start of the last sub-window written.
-- take       (units that count, the instant at which enough of them have left for the cost, or for
--            one more unit if this take leaves nothing, the sub-window's start, now, cost, numbers)
--            -> fits (0 or 1), three zeros, units left if this is written, time units until it
--            would fit, or until a unit is back if it fits and leaves nothing (-1: units are left,
--            or it never can fit), time units until all is back (of a unit written now, if any unit
--            counts), the instant at which the ring may be forgotten. Cost 0 is decided as 1 and
--            writes nothing. A cost above the quota never fits.
-- give_back  The store subtracts from the sub-window that was charged, never below zero, so there
--            is nothing to decide.
-- charge     (units that count, 0, the sub-window's start, now, units, numbers) -> three zeros,
--            units charged, the instant at which the ring may be forgotten. Always charges, into
--            debt if need be, as many units as the debt has room for. They leave as all others do.
-- Memory     16 bytes, and 8 per sub-window. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     Sub-windows as in the sliding windows of Envoy and resilience4j.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the arguments. The driver's
-- generator needs the last line on its own.

local function take(count, leaves, begins, now, cost, quota, length, buckets)
  local ask = cost
  if ask == 0 then ask = 1 end
  local ends = begins + buckets * length
  if count + ask > quota then
    local left, retry, reset = quota - count, -1, 0
    if left < 0 then left = 0 end -- the quota was edited to less
    if ask <= quota then retry = leaves - now end
    if count > 0 then reset = ends - now end
    return 0, 0, 0, 0, left, retry, reset, ends + buckets * length
  end
  local retry, reset = -1, 0
  if count + cost == quota then
    retry = ends - now
    if count > 0 then retry = leaves - now end
  end
  count = count + cost
  if count > 0 then reset = ends - now end
  return 1, 0, 0, 0, quota - count, retry, reset, ends + buckets * length
end

local function give_back()
  return 0, 0, 0, 0, 0
end

local function charge(count, _, begins, _, units, quota, length, buckets, debt)
  local room = quota + debt - count
  if units > room then units = room end
  if units < 0 then units = 0 end
  return 0, 0, 0, units, begins + 2 * buckets * length
end

return { take = take, give_back = give_back, charge = charge }
