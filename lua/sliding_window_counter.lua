-- sliding_window_counter: about `quota` units in any trailing period. The previous window counts in
-- proportion to the part of it that the period still covers.
--
-- Promises   Approximate: it assumes that the previous window's units came evenly. If they did not
--            (all at the end of one window, then all at the end of the next), up to 2 x quota may
--            pass in a trailing period. Over two whole windows it is right. Measured on real
--            traffic: docs/algorithms.md. Units of a debt weigh as all others do.
-- Numbers    quota (units), period (time units), debt (units that charges may take beyond the
--            quota).
-- State      s1 = the window's start (time units since 1970, a whole multiple of the period), s2 =
--            units in it, s3 = units in the previous one. The start is compared with `now`; expiry
--            never decides. A start in the future proves that the clock stepped back: both windows
--            start again empty.
-- Lifetime   Two periods beyond the window's end: one in which it still counts, and one more.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is
--            written, time units until it would fit, or until one unit would if it fits and leaves
--            nothing (-1: units are left, or it never can fit), time units until all is back, the
--            instant at which the state may be forgotten (0: unchanged). Cost 0 is decided as 1 and
--            counts nothing. A cost above the quota never fits. A cost does fit at the time
--            answered here, unless other requests take the units first.
-- give_back  (state, now, units, the instant of the take, numbers) -> new state, changed (0 or 1),
--            the instant at which it may be forgotten. Into the window that was charged, this one
--            or the previous one, never below zero; all 0 if both are empty.
-- charge     (state, now, units, numbers) -> new state, units charged, the instant at which the
--            state may be forgotten. Always charges, into debt if need be, as many units as the
--            debt has room for. 0 charged: nothing is to be written.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     Cloudflare, "How we built rate limiting capable of scaling to millions of domains"
--            (2017): the two counters and their weights.
--
-- What the previous window weighs is rounded up to whole units, with no error before that: a
-- product above 2^52 is divided in parts. All arguments and answers are whole numbers below 2^53,
-- so the same text gives the same answers in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend
-- only on the arguments. The driver's generator needs the last line on its own.

-- What `units` of the previous window weigh while the period covers `inside` time units of it: the
-- product of both divided by the period, rounded up.
local function weight(units, inside, period)
  local product = units * inside
  if product <= 4503599627370496 then
    return (product + (period - product % period) % period) / period
  end
  -- The whole multiples of the period first, then the rest by twelve bits of `inside` at a time:
  -- the period is below 2^36, so nothing exceeds 2^48.
  local rest, digits = units % period, inside
  local sum, carry, place = 0, 0, 16777216
  for _ = 1, 3 do
    local digit = (digits - digits % place) / place
    digits, place = digits % place, place / 4096
    carry = carry % period * 4096 + rest * digit
    sum = sum * 4096 + (carry - carry % period) / period
  end
  if carry % period > 0 then sum = sum + 1 end
  return (units - rest) / period * inside + sum
end

-- The longest part of the previous window, in time units, of which `units` weigh at most `spare`.
local function part(units, spare, period)
  local product = spare * period
  local inside = product / units
  inside = inside - inside % 1
  if inside > period then inside = period end
  -- The product was rounded, so the quotient may be one off.
  if product > 4503599627370496 then
    while weight(units, inside, period) > spare do inside = inside - 1 end
    while inside < period and weight(units, inside + 1, period) <= spare do inside = inside + 1 end
  end
  return inside
end

-- Time units until `ask` units, at most a quota, would fit that do not fit now. `ends`: time units
-- until this window's end.
local function until_it_fits(ask, current, previous, ends, quota, period)
  local spare = quota - ask - current
  -- In this window, or in the next one, in which this one's units weigh less and less.
  if spare >= 0 then return ends - part(previous, spare, period) end
  return ends + period - part(current, quota - ask, period)
end

local function take(s1, s2, s3, now, cost, quota, period)
  local start = now - now % period
  local current, previous = 0, 0
  if s1 == start then
    current, previous = s2, s3
  elseif s1 + period == start then
    previous = s2
  end
  local ends = start + period
  local forget = ends + period + period
  if current > 0 then forget = 0 end
  local ask = cost
  if ask == 0 then ask = 1 end

  local free = quota - current - weight(previous, ends - now, period)
  if ask > free then
    local retry, left = -1, 0
    if free > 0 then left = free end
    if ask <= quota then
      retry = until_it_fits(ask, current, previous, ends - now, quota, period)
    end
    local reset = 0
    if current > 0 then
      reset = ends - now + period
    elseif previous > 0 then
      reset = ends - now
    end
    return 0, start, current, previous, left, retry, reset, 0
  end
  current = current + cost
  free = free - cost
  local reset = 0
  if current > 0 then
    reset = ends - now + period
  elseif previous > 0 then
    reset = ends - now
  end
  local retry = -1
  if free < 1 and cost > 0 then
    retry = until_it_fits(1, current, previous, ends - now, quota, period)
  end
  return 1, start, current, previous, free, retry, reset, forget
end

local function give_back(s1, s2, s3, now, units, taken_at, _, period)
  local charged = taken_at - taken_at % period
  local start = now - now % period
  -- A window in the future: the clock stepped back, and what was taken is no longer in this state.
  if s1 > start or start > s1 + period or taken_at > now or units == 0 then
    return s1, s2, s3, 0, 0
  end
  local current, previous = s2, s3
  if charged == s1 and s2 > 0 then
    current = s2 - units
    if current < 0 then current = 0 end
  elseif charged + period == s1 and start == s1 and s3 > 0 then
    previous = s3 - units
    if previous < 0 then previous = 0 end
  else
    return s1, s2, s3, 0, 0
  end
  if current == 0 and previous == 0 then return 0, 0, 0, 1, 0 end
  return s1, current, previous, 1, 0
end

local function charge(s1, s2, s3, now, units, quota, period, debt)
  local start = now - now % period
  local current, previous = 0, 0
  if s1 == start then
    current, previous = s2, s3
  elseif s1 + period == start then
    previous = s2
  end
  local ends = start + period
  local room = quota + debt - current - weight(previous, ends - now, period)
  if units > room then units = room end
  if units <= 0 then return s1, s2, s3, 0, 0 end
  return start, current + units, previous, units, ends + period + period
end

return { take = take, give_back = give_back, charge = charge }
