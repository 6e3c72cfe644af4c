-- lockout: `tries` units in a window, and once they are used up a pause, whatever is left of the
-- window. For logins and one-time codes.
--
-- Promises   Exact: at most `tries` pass within `window` of a window's first unit; after the last
--            of them, none for `pause`. If successful attempts are given back, only failures count.
-- Numbers    tries (units), window (microseconds), pause (microseconds): arguments = [5,
--            60_000_000, 300_000_000] is five a minute, then five minutes of pause.
-- State      s1 = when the window began, s2 = units in it, s3 = when the pause ends, 0 if there is
--            none. All 0: nothing was taken. A pause that ends later than one can, or a window that
--            begins in the future, proves that the clock stepped back: it starts again.
-- Lifetime   To the end of the window and of the pause.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, if it fits, one SET.
--
-- The arguments with which it is tried before it is used:
-- trial: 5 60000000 300000000
-- trial: 1 1 0

local function take(s1, s2, s3, now, cost, tries, window, pause)
  if s3 > now + pause then s3 = 0 end
  if s3 > now then
    return 0, s1, s2, s3, 0, s3 - now, s3 - now, s3
  end
  if s3 > 0 or s1 > now or now - s1 >= window then
    s1, s2, s3 = now, 0, 0
  end
  local ends = s1 + window
  local ask = math.max(cost, 1)
  if s2 + ask > tries then
    local retry = ends - now
    if ask > tries then retry = -1 end
    return 0, s1, s2, s3, math.max(tries - s2, 0), retry, ends - now, ends
  end
  s2 = s2 + cost
  if s2 >= tries then
    s3 = now + pause
    ends = math.max(ends, s3)
  end
  return 1, s1, s2, s3, tries - s2, -1, ends - now, ends
end

local function give_back(s1, s2, s3, _, units, taken, tries, window)
  if taken < s1 or taken - s1 >= window then
    return s1, s2, s3, 0, 0
  end
  s2 = math.max(s2 - units, 0)
  if s2 < tries then s3 = 0 end
  return s1, s2, s3, 1, math.max(s1 + window, s3)
end

return { take = take, give_back = give_back }
