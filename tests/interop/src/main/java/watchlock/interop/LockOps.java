package watchlock.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.OptionalLong;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The operations on a plain lock, each one call of Redisson's {@link RLock}. */
final class LockOps {
    private LockOps() {}

    /** Run on the owner's thread. */
    static Map<String, Object> owned(Owner owner, String name, RedissonClient client, Request request, Timed timed)
            throws Exception {
        RLock lock = client.getLock(name);
        return switch (request.op()) {
            case "lock" -> lock(owner, lock, name, request, timed);
            case "try_lock" -> tryLock(owner, lock, name, request, timed);
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

    static Map<String, Object> ownerless(RedissonClient client, Request request, Timed timed) throws Exception {
        switch (request.op()) {
            case "bench_pairs":
                return timed.call(() -> new PairsBench(client, request).run());
            case "bench_contended":
                return timed.call(() -> new ContendedBench(client, request).run());
            default:
        }
        RLock lock = client.getLock(request.text("name"));
        return switch (request.op()) {
            case "force_unlock" -> Map.of("released", timed.call(lock::forceUnlock));
            case "is_locked" -> Map.of("locked", timed.call(lock::isLocked));
            default -> Map.of("ms", timed.call(lock::remainTimeToLive));
        };
    }

    private static Map<String, Object> lock(Owner owner, RLock lock, String name, Request request, Timed timed)
            throws Exception {
        OptionalLong lease = request.optionalNumber("lease_ms");
        owner.waits(name);
        try {
            timed.call(() -> {
                if (lease.isPresent()) {
                    lock.lockInterruptibly(lease.getAsLong(), MILLISECONDS);
                } else {
                    lock.lockInterruptibly();
                }
                return null;
            });
        } finally {
            owner.waitsNoMore();
        }
        return counted(lock);
    }

    private static Map<String, Object> tryLock(Owner owner, RLock lock, String name, Request request, Timed timed)
            throws Exception {
        OptionalLong lease = request.optionalNumber("lease_ms");
        long wait = request.number("wait_ms");
        owner.waits(name);
        boolean acquired;
        try {
            acquired = timed.call(() -> lease.isPresent()
                    ? lock.tryLock(wait, lease.getAsLong(), MILLISECONDS)
                    : lock.tryLock(wait, MILLISECONDS));
        } finally {
            owner.waitsNoMore();
        }
        if (!acquired) {
            return Map.of("acquired", false);
        }
        Map<String, Object> result = counted(lock);
        result.put("acquired", true);
        return result;
    }

    /** The count is a question to Redis after the call: when it cannot be asked, the call has worked none the less. */
    private static Map<String, Object> counted(RLock lock) {
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            result.put("count", lock.getHoldCount());
        } catch (RuntimeException e) {
            System.err.println("hold count unknown: " + e);
        }
        return result;
    }
}
