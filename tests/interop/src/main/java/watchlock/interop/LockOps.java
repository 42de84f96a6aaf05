package watchlock.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.OptionalLong;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;

/** The operations on a lock, each one call of Redisson's {@link RLock}. */
final class LockOps {
    /** Redisson's own word for an acquire under the watchdog. */
    private static final long NO_LEASE = -1;

    private LockOps() {}

    /** Run on the owner's thread. */
    static Map<String, Object> owned(Owner owner, Owner.Held of, Servers servers, Request request, Timed timed)
            throws Exception {
        RLock lock = of.lock(servers);
        return switch (request.op()) {
            case "lock" -> lock(owner, lock, of, request, timed);
            case "try_lock" -> tryLock(owner, lock, of, request, timed);
            case "unlock" -> {
                timed.call(() -> {
                    lock.unlock();
                    return null;
                });
                yield counted(lock);
            }
            case "is_held" -> Map.of("held", timed.call(lock::isHeldByCurrentThread));
            default -> Map.of("count", timed.call(lock::getHoldCount));
        };
    }

    static Map<String, Object> ownerless(Servers servers, Kind kind, Request request, Timed timed)
            throws Exception {
        switch (request.op()) {
            case "bench_pairs":
                return timed.call(() -> new PairsBench(servers, kind, request).run());
            case "bench_contended":
                return timed.call(() -> new ContendedBench(servers, kind, request).run());
            default:
        }
        RLock lock = kind.lock(servers, request.name(kind));
        return switch (request.op()) {
            case "force_unlock" -> Map.of("released", timed.call(lock::forceUnlock));
            case "is_locked" -> Map.of("locked", timed.call(lock::isLocked));
            default -> Map.of("ms", timed.call(lock::remainTimeToLive));
        };
    }

    private static Map<String, Object> lock(Owner owner, RLock lock, Owner.Held of, Request request, Timed timed)
            throws Exception {
        OptionalLong lease = request.optionalNumber("lease_ms");
        Long token;
        owner.waits(of);
        try {
            token = timed.call(() -> {
                if (lock instanceof RFencedLock fenced) {
                    return lockAndGetToken(fenced, lease);
                } else if (lease.isPresent()) {
                    lock.lockInterruptibly(lease.getAsLong(), MILLISECONDS);
                } else {
                    lock.lockInterruptibly();
                }
                return null;
            });
        } finally {
            owner.waitsNoMore();
        }
        return acquired(lock, token);
    }

    /** {@code lockAndGetToken(lease)} forgets the lease, so a wait without an end stands for it. */
    private static Long lockAndGetToken(RFencedLock lock, OptionalLong lease) {
        return lease.isPresent()
                ? lock.tryLockAndGetToken(Long.MAX_VALUE, lease.getAsLong(), MILLISECONDS)
                : lock.lockAndGetToken();
    }

    private static Map<String, Object> tryLock(Owner owner, RLock lock, Owner.Held of, Request request, Timed timed)
            throws Exception {
        long lease = request.optionalNumber("lease_ms").orElse(NO_LEASE);
        long wait = request.number("wait_ms");
        Long token = null;
        boolean acquired;
        owner.waits(of);
        try {
            if (lock instanceof RFencedLock fenced) {
                token = timed.call(() -> fenced.tryLockAndGetToken(wait, lease, MILLISECONDS));
                acquired = token != null;
            } else {
                acquired = timed.call(() -> lock.tryLock(wait, lease, MILLISECONDS));
            }
        } finally {
            owner.waitsNoMore();
        }
        if (!acquired) {
            return Map.of("acquired", false);
        }
        Map<String, Object> result = acquired(lock, token);
        result.put("acquired", true);
        return result;
    }

    private static Map<String, Object> acquired(RLock lock, Long token) {
        Map<String, Object> result = counted(lock);
        if (token != null) {
            result.put("token", token);
        }
        return result;
    }

    /** The count is a question to Redis after the call: when it cannot be asked, the call has worked none the less. */
    private static Map<String, Object> counted(RLock lock) {
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            result.put("count", lock.getHoldCount());
        } catch (UnsupportedOperationException e) {
            // a RedissonMultiLock does not count
        } catch (RuntimeException e) {
            System.err.println("hold count unknown: " + e);
        }
        return result;
    }
}
