package watchlock.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** What both semaphores of Redisson can do. What a taken permit is called, only the one with leases says. */
interface Permits {
    /** The ids of the permits, empty for those that have none; null when there were too few to the end. */
    List<String> take(int permits, Long waitMs, Long leaseMs) throws InterruptedException;

    int giveBack(int permits, List<String> ids);

    boolean setIfAbsent(int permits, Long ttlMs);

    void add(int permits);

    int drain() throws Failure;

    Map<String, Object> counts();

    static Permits of(RedissonClient client, String kind, String name) throws Failure {
        return switch (kind) {
            case "semaphore" -> new Counting(client.getSemaphore(name));
            case "permit" -> new Expirable(client.getPermitExpirableSemaphore(name));
            default -> throw Failure.unsupported("permits of kind " + kind);
        };
    }

    record Counting(RSemaphore of) implements Permits {
        @Override
        public List<String> take(int permits, Long waitMs, Long leaseMs) throws InterruptedException {
            if (waitMs == null) {
                of.acquire(permits);
                return List.of();
            }
            return of.tryAcquire(permits, waitMs, MILLISECONDS) ? List.of() : null;
        }

        @Override
        public int giveBack(int permits, List<String> ids) {
            of.release(permits);
            return permits;
        }

        @Override
        public boolean setIfAbsent(int permits, Long ttlMs) {
            return ttlMs == null ? of.trySetPermits(permits) : of.trySetPermits(permits, Duration.ofMillis(ttlMs));
        }

        @Override
        public void add(int permits) {
            of.addPermits(permits);
        }

        @Override
        public int drain() {
            return of.drainPermits();
        }

        @Override
        public Map<String, Object> counts() {
            return Map.of("available", of.availablePermits());
        }
    }

    record Expirable(RPermitExpirableSemaphore of) implements Permits {
        @Override
        public List<String> take(int permits, Long waitMs, Long leaseMs) throws InterruptedException {
            if (waitMs == null) {
                return leaseMs == null ? of.acquire(permits) : of.acquire(permits, leaseMs, MILLISECONDS);
            }
            // Redisson's word for permits without a lease is -1.
            List<String> ids = of.tryAcquire(permits, waitMs, leaseMs == null ? -1 : leaseMs, MILLISECONDS);
            return ids.isEmpty() ? null : ids;
        }

        @Override
        public int giveBack(int permits, List<String> ids) {
            return of.tryRelease(ids);
        }

        @Override
        public boolean setIfAbsent(int permits, Long ttlMs) {
            boolean set = of.trySetPermits(permits);
            if (ttlMs != null) {
                of.expire(Duration.ofMillis(ttlMs));
            }
            return set;
        }

        @Override
        public void add(int permits) {
            of.addPermits(permits);
        }

        @Override
        public int drain() throws Failure {
            throw Failure.unsupported("drain of kind permit");
        }

        @Override
        public Map<String, Object> counts() {
            return Map.of(
                    "available", of.availablePermits(),
                    "acquired", of.acquiredPermits(),
                    "total", of.getPermits());
        }
    }
}
