-- quota: at most `amount` units in each calendar period (an hour, a day, a week or a month), or in
-- total.
--
-- Promises   Exact while all callers use the same calendar (one version of the time zone database):
--            a period admits `amount` units, never one more. If unconditional, it only counts and
--            refuses nothing. The store's time selects the period among those that the caller names
--            around its own time. If none of them matches, because the caller's clock is off, it is
--            told so and nothing is charged. What was charged beyond the amount counts in the next
--            period.
-- Numbers    amount (units), conditional (1: it refuses; 0: it only counts), and four ascending
--            instants (time units since 1970): the starts of the previous period, this one, the
--            next and the one after. All four 0: a single period that never ends. Last the debt
--            (units, at most the amount, that charges may take beyond the amount; below zero: as
--            many, and forgotten when the period ends).
-- State      s1 = the period's start, s2 = units counted in it, s3 = those of them that are owed:
--            they count in the next period if they are above the amount still. A count of zero
--            means no period. A start other than this period's belongs to another period, so
--            counting starts again at 0. The exception is the next period's start: the clock
--            stepped back over the border, and units are counted in that period, as it would
--            otherwise start twice.
-- Lifetime   One period beyond the period's end, two if it ends in debt; unlimited for a period
--            that never ends.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is written
--            (never below 0), time units until it would fit (-1: it fits, or never can; -2: none of
--            the periods named contains now, or they don't tell what is owed or when it is paid,
--            and nothing was decided), time units until all is back (0 if never), the instant at
--            which the state may be forgotten (0: unchanged; -1: never). Cost 0 is decided as 1 and
--            counts nothing. A cost above the amount never fits. If the clock stepped back over the
--            start of a period whose units are owed, the end of the one after it is estimated.
-- give_back  (state, now, units, the instant of the take, numbers) -> new state, changed (0 or 1),
--            the instant at which it may be forgotten. Only into the period that was charged. A
--            count of zero means no period: all 0.
-- charge     (state, now, units, numbers) -> new state, units charged (-2: as in take), the instant
--            at which the state may be forgotten. Always charges, into debt if need be, as many
--            units as the debt has room for. 0 charged: nothing is to be written.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SETRANGE (a SET with its lifetime for a period's first unit).
-- Source     The quotas of API gateways and billing. Lua has no time zones, so the caller passes
--            the starts: a period is identified by its start.
--
-- All arguments and answers are whole numbers up to 2^53, so the same text gives the same answers
-- in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the arguments. The driver's
-- generator needs the last line on its own.

-- Units that are only counted can be any number. The count ends here.
local COUNT_MAX = 9007199254740992

-- The period that contains an instant, among those named: its start, its end (-1: it has none), and
-- the end of the next one, which is estimated as one more period if it is not named. nil if none
-- contains the instant.
local function period(at, before, this, next, after)
  if after == 0 then return 0, -1, -1 end
  if at < before or at >= after then return nil end
  if at >= next then return next, after, after + after - next end
  if at < this then return before, this, next end
  return this, next, after
end

-- How many of `count` units the next period has to pay, of those that were charged as owed.
local function owed(count, owing, amount)
  local over = count - amount
  if over > owing then over = owing end
  if over < 0 then over = 0 end
  return over
end

-- The period in which units count now: its start, its end, the end of the next one, the units that
-- count in it, and those that are owed. What the period before could not hold is carried over. nil
-- if the periods named don't tell.
local function counted(s1, s2, s3, now, amount, before, this, next, after)
  local start, ends, next_ends = period(now, before, this, next, after)
  -- The counted period started before the clock stepped back over its border.
  if start and s2 > 0 and s1 == ends then
    start, ends, next_ends = period(s1, before, this, next, after)
  end
  if not start then return nil end
  if s1 == start then return start, ends, next_ends, s2, s3 end
  local count = owed(s2, s3, amount)
  if count == 0 or s1 > start then return start, ends, next_ends, 0, 0 end
  -- A debt of at most the amount is paid in one period. The one before the first is not named, and
  -- may have been half as long again.
  if start == before and 2 * (before - s1) <= 3 * (this - before) then return nil end
  local follows = start == this and s1 == before or start == next and s1 == this
  if not follows then count = 0 end
  return start, ends, next_ends, count, count
end

local function take(s1, s2, s3, now, cost, amount, conditional, before, this, next, after)
  local start, ends, next_ends, count, owing =
    counted(s1, s2, s3, now, amount, before, this, next, after)
  if not start then return 0, 0, 0, 0, 0, -2, 0, 0 end

  local forget = next_ends
  if start == s1 and s2 > 0 then forget = 0 end
  local ask = cost
  if ask == 0 then ask = 1 end

  local fits, retry, reset = 1, -1, 0
  if conditional == 1 and count + ask > amount then
    fits = 0
  else
    count = count + cost
    if count > COUNT_MAX then count = COUNT_MAX end
  end
  local debt = owed(count, owing, amount)
  -- What is owed comes back at the end of a period that is not named.
  if debt > 0 and ends >= 0 and now >= next then return 0, 0, 0, 0, 0, -2, 0, 0 end
  if fits == 0 and ask <= amount and ends >= 0 then
    retry = ends - now
    if debt + ask > amount then retry = next_ends - now end
  end
  if count > 0 and ends >= 0 then
    reset = ends - now
    if debt > 0 then reset = next_ends - now end
  end
  local left = amount - count
  if left < 0 then left = 0 end
  return fits, start, count, owing, left, retry, reset, forget
end

local function give_back(s1, s2, s3, now, units, taken_at, _, _, before, this, next, after)
  local start = period(now, before, this, next, after)
  local charged = period(taken_at, before, this, next, after)
  if not start or charged ~= start or s1 ~= start or s2 == 0 or units == 0 or taken_at > now then
    return s1, s2, s3, 0, 0
  end
  if s2 <= units then return 0, 0, 0, 1, 0 end
  return s1, s2 - units, s3, 1, 0
end

local function charge(s1, s2, s3, now, units, amount, conditional, before, this, next, after, debt)
  local start, ends, next_ends, count, owing =
    counted(s1, s2, s3, now, amount, before, this, next, after)
  if not start then return s1, s2, s3, -2, 0 end
  if conditional == 1 then
    local room = amount + debt - count
    if debt < 0 then room = amount - debt - count end
    if units > room then units = room end
    if units <= 0 then return s1, s2, s3, 0, 0 end
    -- With a debt below zero, what this charge owes is forgotten when the period ends.
    if debt > 0 and count + units - amount > owing then owing = count + units - amount end
  end
  count = count + units
  if count > COUNT_MAX then count = COUNT_MAX end
  local forget = next_ends
  if owed(count, owing, amount) > 0 and ends >= 0 then forget = forget + next_ends - ends end
  return start, count, owing, units, forget
end

return { take = take, give_back = give_back, charge = charge }
