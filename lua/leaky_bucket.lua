-- leaky_bucket: `quota` units every `period` on average. `burst` units pass at once; a request that
-- is early by at most `max_delay` waits for its turn.
--
-- Promises   Exact: requests, each at the instant at which its wait is over, conform to the bucket.
--            In any span of length t at most burst + t x quota / period units pass, where a first
--            request that costs more than the burst counts as the burst. Waits are whole time
--            units, rounded up: if a unit does not last a whole number of them, t is one longer. No
--            request waits longer than `max_delay`, so at most max_delay x quota / period units
--            wait.
-- Numbers    quota (units), period (time units; both divided by what they have in common), burst
--            (units), max_delay (time units), may_wait (1, or 0 if the caller can't hold one more
--            waiting request: then only what passes at once fits).
-- State      s1 + s2 / quota = the instant at which nothing was left, or will be once the last
--            waiting request has passed (time units since 1970; s1 whole, s2 the remainder in 1 /
--            quota units): the theoretical arrival time (TAT) minus a whole burst. What has flowed
--            in since, a burst at most, is left; an instant in the future is a queue. s3 = the
--            instant of the last write; 0 means absent: full. A last write in the future proves
--            that the clock stepped back: the bucket starts afresh, full from now, in addition to
--            the requests that still wait.
-- Lifetime   One period beyond the instant at which all is back.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is written
--            (of the burst: those that would not wait), then if it does not fit the time units
--            until it would (-1: never), or if it fits the time units that it waits (-1: none),
--            time units until all is back, the instant at which the state may be forgotten. Cost 0
--            is decided as 1 and charges nothing.
-- give_back  (as every give_back) -> the state unchanged. Later requests already have their turns,
--            and a returned turn would let two requests pass in one.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     The leaky bucket as a queue, as in nginx' limit_req with burst and delay; the schedule
--            follows ITU-T I.371.
--
-- The level is counted in ticks of 1 / quota time units: one unit costs `period` ticks, a time unit
-- brings `quota` ticks, and burst x period + max_delay x quota <= 2^52, so every sum, product and
-- quotient below is a whole number that a double represents exactly. A larger product exceeds any
-- burst and any queue that these numbers allow, and is only compared. All arguments and answers are
-- whole numbers below 2^53, so the same text gives the same answers in Redis' Lua 5.1 and in
-- LuaJIT. Pure: the answers depend only on the arguments. The driver's generator needs the last
-- line on its own.

local function take(s1, s2, s3, now, cost, quota, period, burst, max_delay, may_wait)
  local full, waiting = burst * period, 0
  if may_wait == 1 then waiting = max_delay * quota end
  if s2 >= quota then s1, s2 = s1 + 1, 0 end
  local level = full
  local known = s3 > 0 and s3 <= now
  if known then
    level = (now - s1) * quota - s2
    if level > full then level = full end
  end
  local ask = cost
  if ask == 0 then ask = 1 end

  local fits, wait = 0, -1
  local lacking = ask * period - waiting - level
  if lacking <= 0 then
    fits = 1
    local early = ask * period - level
    level = level - cost * period
    if early > 0 then wait = (early + (quota - early % quota) % quota) / quota end
  elseif ask * period <= full + waiting then
    if known and s1 > now then
      -- The limit may have been edited, so that the queue is longer than these numbers allow. Then
      -- the wait is computed from instants, so that no product becomes too large.
      lacking = ask * period - waiting + s2
      wait = s1 - now
    else
      wait = 0
    end
    wait = wait + (lacking + (quota - lacking % quota) % quota) / quota
  end
  if fits == 0 and known and s1 > now then
    local missing = full + s2
    local reset = s1 - now + (missing + (quota - missing % quota) % quota) / quota
    return 0, s1, s2, s3, 0, wait, reset, now + reset + period
  end
  local left, missing = 0, full - level
  if level > 0 then left = (level - level % period) / period end
  local reset = (missing + (quota - missing % quota) % quota) / quota
  local rest = (quota - level % quota) % quota
  return fits, now - (level + rest) / quota, rest, now, left, wait, reset, now + reset + period
end

local function give_back(s1, s2, s3)
  return s1, s2, s3, 0, 0
end

return { take = take, give_back = give_back }
