-- fixed_window: at most `quota` units in each window of `period`.
--
-- Promises   Exact: a window admits `quota` units, never one more. As with every fixed window, up
--            to 2 x quota may pass around the border of two windows. A window starts once, with its
--            first unit or by the clock; later hits never extend it. What was charged beyond the
--            quota counts in the next windows, which begin where this one ends, until it is paid.
-- Numbers    quota (units), period (time units), alignment (0: a window starts at the first request
--            after the previous one ended; 1: at whole multiples of the period since 1970), debt
--            (units that charges may take beyond the quota; below zero: as many, and forgotten when
--            the window ends).
-- State      s1 = the window's start (time units since 1970), s2 = units counted in it, s3 = those
--            of them that are owed: they count in the next window if they are above the quota
--            still. Units above a quota that was edited to less are not owed. A count of zero means
--            no window. The start is compared with `now`; expiry never decides. A start in the
--            future proves that the clock stepped back. With alignment 1, if it is the start of the
--            next window, units are counted in that window, as it would otherwise start twice. In
--            all other cases counting starts afresh.
-- Lifetime   One period beyond the window's end, or beyond the end of the last one that pays a
--            debt.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is
--            written, time units until it would fit (-1: it fits, or never can), time units until
--            all is back, the instant at which the state may be forgotten (0: unchanged). Cost 0 is
--            decided as 1 and counts nothing. A cost above the quota never fits.
-- give_back  (state, now, units, the instant of the take, numbers) -> new state, changed (0 or 1),
--            the instant at which it may be forgotten. Only into the window that was charged. A
--            count of zero means no window: all 0.
-- charge     (state, now, units, numbers) -> new state, units charged, the instant at which the
--            state may be forgotten. Always charges, into debt if need be, as many units as the
--            debt has room for. 0 charged: nothing is to be written.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SETRANGE (a SET with its lifetime for a window's first unit).
-- Source     The usual fixed window counter (nginx, Envoy, Redis' INCR pattern), with the window's
--            start stored in the value.
--
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the arguments. The driver's
-- generator needs the last line on its own.

-- How many of `count` units the next windows have to pay, of those that were charged as owed. A
-- quota that was edited to much less forgives what takes more than 2^51 time units, so that all
-- numbers stay exact.
local function owed(count, owing, quota, period)
  local most = (2251799813685248 - 2251799813685248 % period) / period * quota
  local over = count - quota
  if over > owing then over = owing end
  if over > most then over = most end
  if over < 0 then over = 0 end
  return over
end

-- The window that contains now: its start, the units that count in it, and those that are owed.
-- What the previous windows could not hold is carried over.
local function window(s1, s2, s3, now, quota, period, alignment)
  local start = now
  if alignment == 1 then
    start = now - now % period
    if s1 == start + period and s2 > 0 then return s1, s2, s3 end
  end
  if s2 == 0 or s1 > start then return start, 0, 0 end
  local age = now - s1
  if age < period then return s1, s2, s3 end
  local windows = (age - age % period) / period
  local count = owed(s2, s3, quota, period) - (windows - 1) * quota
  if count <= 0 then return start, 0, 0 end
  return s1 + windows * period, count, count
end

local function take(s1, s2, s3, now, cost, quota, period, alignment)
  local start, count, owing = window(s1, s2, s3, now, quota, period, alignment)
  local ends = start + period
  local forget = ends + period
  if start == s1 and s2 > 0 then forget = 0 end
  local ask = cost
  if ask == 0 then ask = 1 end

  if count + ask > quota then
    local left, retry, reset = quota - count, -1, 0
    if left < 0 then left = 0 end -- in debt, or the quota was edited to less
    local debt = owed(count, owing, quota, period)
    local windows = (debt + (quota - debt % quota) % quota) / quota
    -- It may have been charged under a larger quota, and is paid later now.
    if debt > 0 then forget = ends + (1 + windows) * period end
    if ask <= quota then
      retry = ends - now
      local lacking = debt + ask - quota
      if lacking > 0 then
        retry = retry + (lacking + (quota - lacking % quota) % quota) / quota * period
      end
    end
    if count > 0 then
      reset = ends - now + windows * period
    end
    return 0, start, count, owing, left, retry, reset, forget
  end
  count = count + cost
  local reset = 0
  if count > 0 then reset = ends - now end
  return 1, start, count, 0, quota - count, -1, reset, forget
end

local function give_back(s1, s2, s3, now, units, taken_at, _, period)
  local ends = s1 + period
  local charged = s1 <= taken_at and taken_at <= now and now < ends
  if not charged or s2 == 0 or units == 0 then
    return s1, s2, s3, 0, 0
  end
  if s2 <= units then return 0, 0, 0, 1, 0 end
  return s1, s2 - units, s3, 1, 0
end

local function charge(s1, s2, s3, now, units, quota, period, alignment, debt)
  local start, count, owing = window(s1, s2, s3, now, quota, period, alignment)
  local room = quota + debt - count
  if debt < 0 then room = quota - debt - count end
  if units > room then units = room end
  if units <= 0 then return s1, s2, s3, 0, 0 end
  count = count + units
  -- With a debt below zero, what this charge owes is forgotten when the window ends.
  if debt > 0 and count - quota > owing then owing = count - quota end
  local over = owed(count, owing, quota, period)
  local windows = (over + (quota - over % quota) % quota) / quota
  return start, count, owing, units, start + (2 + windows) * period
end

return { take = take, give_back = give_back, charge = charge }
