-- sliding_window_counter: about `quota` units in any trailing period. The previous window counts in
-- proportion to the part of it that the period still covers.
--
-- Promises   Approximate: it assumes that the previous window's units came evenly. If they did not
--            (all at the end of one window, then all at the end of the next), up to 2 x quota may
--            pass in a trailing period. Over two whole windows it is right. Measured on real
--            traffic: docs/algorithms.md.
-- Numbers    quota (units), period (time units).
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
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     Cloudflare, "How we built rate limiting capable of scaling to millions of domains"
--            (2017): the two counters and their weights.
--
-- Sums are compared in units x period, so that each term is a whole number: previous x (period -
-- elapsed) + current x period. Counts above the quota (it was edited to less) may make a product
-- that a double can't represent exactly. It is then far above the quota, and is only compared. All
-- arguments and answers are whole numbers below 2^53, so the same text gives the same answers in
-- Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the arguments. The driver's
-- generator needs the last line on its own.

-- Time units until `ask` units, at most a quota, would fit that do not fit now. `ends`: time units
-- until this window's end.
local function until_it_fits(ask, current, previous, ends, quota, period)
  local spare = quota - ask - current
  if spare >= 0 then
    -- In this window, once the weight of the previous one is at most `spare`.
    local weighs = spare * period
    return ends - (weighs - weighs % previous) / previous
  end
  -- In the next one, once the weight of this one's units is small enough.
  local weighs = (quota - ask) * period
  local inside = (weighs - weighs % current) / current
  if inside > period then inside = period end
  return ends + period - inside
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

  local free = quota * period - current * period - previous * (ends - now)
  if ask * period > free then
    local retry, left = -1, 0
    if free > 0 then left = (free - free % period) / period end
    if ask <= quota then
      retry = until_it_fits(ask, current, previous, ends - now, quota, period)
    end
    local reset = 0
    if current > 0 then
      reset = ends - now + period
    elseif previous > 0 then
      reset = ends - now
    end
    return 0, start, current, previous, left, retry, reset, forget
  end
  current = current + cost
  free = free - cost * period
  local reset = 0
  if current > 0 then
    reset = ends - now + period
  elseif previous > 0 then
    reset = ends - now
  end
  local retry = -1
  if free < period and cost > 0 then
    retry = until_it_fits(1, current, previous, ends - now, quota, period)
  end
  return 1, start, current, previous, (free - free % period) / period, retry, reset, forget
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

return { take = take, give_back = give_back }
