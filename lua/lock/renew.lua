-- Renews many holds at once, each for itself: one bad key does not cost the others.
-- Follows renewals.lua
--
-- KEYS[i]     lock    - hash: hold id -> hold count
-- ARGV[2i-1], ARGV[2i] - hold id and lease, as in renewals.lua
--
-- Returns   an integer per lock, as in renewals.lua, or an error of the whole server
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
return renew_all(function(lock, hold_id) return redis.pcall('HEXISTS', lock, hold_id) end)
