-- Cells of up to three numbers: a string of packed doubles. See `frame.lua`.

--@ read
if STORED then
  LOAD_STATE()
end

--@ extend
-- The lifetime may have been set under a larger quota, with which all would be back earlier. Expiry
-- must not admit what was just refused.
if retry_I > 0 and expires_I > 0 then
  --+ lifetime
  local ends = call('PEXPIRETIME', KEYS[I])
  if ends > 0 and ends < expires_I then call('PEXPIREAT', KEYS[I], fmt('%d', expires_I)) end
end

--@ keep
--+ lifetime

--@ again
-- When what the first request needed would fit again, if there is less.
if left_I < least then
  _, _, _, _, _, retry_I = TAKE(x_I, y_I, z_I, now, least, NUMBERS)
end

--@ write
do
  local value = PACKED
  --+ set
end

--@ give_back
do
  local s1, s2, s3 = 0, 0, 0
  LOAD_STATE()
  local x_I, y_I, z_I, changed, expires_I = GIVE_BACK(s1, s2, s3, now, units, taken, NUMBERS)
  if changed == 1 then
    if x_I == 0 and y_I == 0 and z_I == 0 then
      -- Equivalent to no counter, so it need not be kept.
      call('DEL', KEYS[I])
    else
      --+ lifetime
      local value = PACKED
      --+ set
    end
  end
end
