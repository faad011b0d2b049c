-- All that the Redis store does at once, each action atomic: Redis runs one script at a time.
--
-- KEYS  calls entries names expiry leases tokens last_token log; all of one hash slot
-- ARGV  action, client, number of the call ('' for reads), time ('' = the server's clock), arguments
--
-- calls       hash   client -> its last call and the answer; a call that comes again is answered, not repeated
-- entries     hash   key -> value
-- names       zset   keys, all with score 0, so that prefixes are ranges
-- expiry      zset   key -> seconds of wall clock; keys without time to live are absent
-- leases      hash   name -> {owner, token, expires_at}
-- tokens      hash   token -> name, of leases that are held
-- last_token  string
-- log         stream, record n under the id (n + 1)-0, since 0-0 can't be one

local CALLS, ENTRIES, NAMES, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local LEASES, TOKENS, LAST_TOKEN, LOG = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local action, client, number = ARGV[1], ARGV[2], ARGV[3]
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function stale(fence)
  return fence ~= '' and redis.call('HEXISTS', TOKENS, fence) == 0
end

local function id(seq)
  return string.format('%.0f-0', tonumber(seq) + 1)
end

local function seq_of(entry)
  return tonumber(string.match(entry[1], '^%d+')) - 1
end

local function last()
  return redis.call('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1]
end

local function expired(key)
  local at = redis.call('ZSCORE', EXPIRY, key)
  return at and tonumber(at) <= now
end

local function value(key)
  if expired(key) then
    return false
  end
  return redis.call('HGET', ENTRIES, key)
end

local function remove(key)
  redis.call('HDEL', ENTRIES, key)
  redis.call('ZREM', NAMES, key)
  redis.call('ZREM', EXPIRY, key)
end

local function set(key, data, ttl)
  redis.call('HSET', ENTRIES, key, data)
  redis.call('ZADD', NAMES, 0, key)
  if ttl then
    redis.call('ZADD', EXPIRY, string.format('%.6f', now + ttl), key)
  else
    redis.call('ZREM', EXPIRY, key)
  end
end

local function sweep()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, 1000)) do
    remove(key)
  end
end

local function lease(name)
  local packed = redis.call('HGET', LEASES, name)
  return packed and cmsgpack.unpack(packed)
end

local function write_lease(name, held)
  redis.call('HSET', LEASES, name, cmsgpack.pack(held))
end

local reads = {}

function reads.read(start, limit)
  if tonumber(limit) < 1 then
    return {}
  end
  return redis.call('XRANGE', LOG, id(start), '+', 'COUNT', limit)
end

function reads.last()
  return last() or {}
end

function reads.get(key)
  return value(key)
end

function reads.items(low, high)
  local found = {}
  for _, key in ipairs(redis.call('ZRANGEBYLEX', NAMES, low, high)) do
    if not expired(key) then
      found[#found + 1] = key
      found[#found + 1] = redis.call('HGET', ENTRIES, key)
    end
  end
  return found
end

local writes = {}

-- {'ok'}, {'stale'}, {'differs'} or {'gap', last seq}
function writes.append(fence, seq, record)
  if stale(fence) then
    return {'stale'}
  end
  local there = redis.call('XRANGE', LOG, id(seq), id(seq))[1]
  if there then
    return {there[2][2] == record and 'ok' or 'differs'}
  end
  local tail = last()
  if tail and seq_of(tail) + 1 ~= tonumber(seq) then
    return {'gap', string.format('%.0f', seq_of(tail))}
  end
  redis.call('XADD', LOG, id(seq), 'r', record)
  return {'ok'}
end

-- {'ok'} or {'stale'}
function writes.truncate(fence, before)
  if stale(fence) then
    return {'stale'}
  end
  local tail = last()
  if tail then
    redis.call('XTRIM', LOG, 'MINID', '=', id(math.min(tonumber(before), seq_of(tail))))
  end
  return {'ok'}
end

-- {'ok'} or {'stale'}
function writes.remove(fence)
  if stale(fence) then
    return {'stale'}
  end
  redis.call('DEL', LOG)
  return {'ok'}
end

function writes.put(key, data, ttl)
  sweep()
  set(key, data, tonumber(ttl))
  return {'ok'}
end

-- Any number of keys and values: read where they are, since a call takes some thousand arguments at most.
function writes.put_many()
  for i = 5, #ARGV, 2 do
    set(ARGV[i], ARGV[i + 1])
  end
  return {'ok'}
end

-- {'ok'}, {'stale'} or {'other'}
function writes.compare_and_set(fence, key, expects, expected, data)
  if stale(fence) then
    return {'stale'}
  end
  local there = value(key)
  if (expects == '1' and there ~= expected) or (expects == '0' and there) then
    return {'other'}
  end
  set(key, data)
  return {'ok'}
end

function writes.delete(key)
  remove(key)
  return {'ok'}
end

-- {'ok', token, expires_at} or {'held'}
function writes.acquire(name, owner, ttl)
  local held = lease(name)
  if held and held.owner ~= owner and held.expires_at > now then
    if held.expires_at > now + tonumber(ttl) then
      held.expires_at = now + tonumber(ttl)
      write_lease(name, held)
    end
    return {'held'}
  end
  if held then
    redis.call('HDEL', TOKENS, held.token)
  end
  if redis.call('EXISTS', LAST_TOKEN) == 0 then
    -- Microseconds: a store that lost its data must not give a token that somebody holds from before.
    redis.call('SET', LAST_TOKEN, string.format('%.0f', math.floor(now * 1000000)))
  end
  local token = string.format('%.0f', redis.call('INCR', LAST_TOKEN))
  redis.call('HSET', TOKENS, token, name)
  write_lease(name, {owner = owner, token = token, expires_at = now + tonumber(ttl)})
  return {'ok', token, string.format('%.6f', now + tonumber(ttl))}
end

-- {'ok', expires_at} or {'stale'}
function writes.renew(name, token, ttl)
  local held = lease(name)
  if not held or held.token ~= token then
    return {'stale'}
  end
  held.expires_at = now + tonumber(ttl)
  write_lease(name, held)
  return {'ok', string.format('%.6f', held.expires_at)}
end

function writes.release(name, token)
  local held = lease(name)
  if held and held.token == token then
    redis.call('HDEL', LEASES, name)
  end
  redis.call('HDEL', TOKENS, token)
  return {'ok'}
end

function writes.goodbye()
  return {'ok'}
end

local function run(act)
  return act(unpack(ARGV, 5, math.min(#ARGV, 12)))
end

if reads[action] then
  return run(reads[action])
end
local packed = redis.call('HGET', CALLS, client)
if packed then
  local seen = cmsgpack.unpack(packed)
  if seen.number == tonumber(number) then
    return seen.answer
  elseif seen.number > tonumber(number) then
    return {'late'}
  end
end
local answer = run(writes[action])
if action == 'goodbye' then
  redis.call('HDEL', CALLS, client)
else
  redis.call('HSET', CALLS, client, cmsgpack.pack({number = tonumber(number), answer = answer}))
end
return answer
