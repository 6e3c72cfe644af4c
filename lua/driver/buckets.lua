-- Counts of sub-windows in a ring: the number of the last one and the sum of all units that count,
-- as doubles, then one double per slot. See `frame.lua`.

--@ functions
local function ring_count(v, this, buckets)
  local last, total = unpack('<dd', v)
  if last > this or this - last >= buckets then return 0 end
  for w = last + 1, this do total = total - unpack('<d', v, 17 + 8 * (w % buckets)) end
  return total, last
end
local function ring_leaves(v, this, last, buckets, units)
  local w = this + 1 - buckets
  local place = w % buckets
  -- Rotated so that the oldest comes first, and padded so that eight can be read at the end. Empty
  -- sub-windows are skipped in groups of sixteen.
  local ring = sub(v, 17 + 8 * place) .. sub(v, 17, 16 + 8 * place) .. rep('\0', 56)
  local zeros, left, at = rep('\0', 128), 0, 0
  while at <= last - w do
    if at % 16 == 0 and sub(ring, 8 * at + 1, 8 * at + 128) == zeros then
      at = at + 16
    else
      local a, b, c, d, e, f, g, h = unpack('<dddddddd', ring, 8 * at + 1)
      local eight = a + b + c + d + e + f + g + h
      if left + eight >= units then
        for _, count in ipairs({ a, b, c, d, e, f, g, h }) do
          left = left + count
          if left >= units then return w + at + buckets end
          at = at + 1
        end
      end
      left, at = left + eight, at + 8
    end
  end
  return this + buckets
end
local function ring_add(v, this, buckets, units)
  local count, last
  if v then count, last = ring_count(v, this, buckets) end
  local to = this % buckets
  if not last then
    local before, after = rep('\0', 8 * to), rep('\0', 8 * (buckets - to - 1))
    return pack('<dd', this, units) .. before .. pack('<d', units) .. after
  end
  local head = pack('<dd', this, count + units)
  if last == this then
    local added = pack('<d', unpack('<d', v, 17 + 8 * to) + units)
    return head .. sub(v, 17, 16 + 8 * to) .. added .. sub(v, 25 + 8 * to)
  end
  local from = (last + 1) % buckets
  if from <= to then
    local kept, zeros = sub(v, 17, 16 + 8 * from), rep('\0', 8 * (to - from))
    return head .. kept .. zeros .. pack('<d', units) .. sub(v, 25 + 8 * to)
  end
  local kept, zeros = sub(v, 25 + 8 * to, 16 + 8 * from), rep('\0', 8 * (buckets - from))
  return head .. rep('\0', 8 * to) .. pack('<d', units) .. kept .. zeros
end

--@ read
local this, last = (now - now % n2) / n2
s3 = this * n2
if STORED then s1, last = ring_count(STORED, this, n3) end
local lacking = s1 + cost - n1
if cost == 0 then lacking = lacking + 1 elseif lacking == 0 then lacking = 1 end
if lacking > 0 and lacking <= s1 then
  s2 = ring_leaves(STORED, this, last, n3, lacking) * n2
end

--@ keep
x_I, y_I, z_I = this, n3, cost
--+ lifetime

--@ write
do
  local value = ring_add(STORED, x_I, y_I, z_I)
  --+ set
end

--@ give_back
do
  local this, charged = (now - now % n2) / n2, (taken - taken % n2) / n2
  local last, total = unpack('<dd', v)
  if last <= this and this - last < n3 and charged <= last and charged + n3 > this then
    local at = 16 + 8 * (charged % n3)
    local count = unpack('<d', v, at + 1)
    if units > count then units = count end
    local head = pack('<dd', last, total - units) .. sub(v, 17, at)
    v = head .. pack('<d', count - units) .. sub(v, at + 9)
    if total == units then
      call('DEL', KEYS[I])
    else
      call('SETRANGE', KEYS[I], '0', v)
    end
  end
end
