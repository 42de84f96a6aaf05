-- Renews many holds at once, each for itself: one bad key does not cost the others.
-- Follows ../lock/renewals.lua
--
-- KEYS[i]     lock    - string: hold id
-- ARGV[2i-1], ARGV[2i] - hold id and lease, as in renewals.lua
--
-- Returns   an integer per lock, as in renewals.lua, or an error of the whole server
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
return renew_all(function(lock, hold_id)
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then return value end
  return value == hold_id and 1 or 0
end)
