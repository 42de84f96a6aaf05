package watchlock.interop;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.redisson.api.RLock;

/**
 * Contended: all threads on one name. A hand-off is measured from just before the release is called to the return of
 * the next acquire, when that acquire was already waiting by then.
 */
final class ContendedBench {
    private final Servers servers;
    private final Kind kind;
    private final String name;
    private final int tasks;
    private final long nanos;
    private final long holdNanos;
    private final long pauseNanos;
    private final boolean busy;

    private final AtomicInteger inside = new AtomicInteger();
    private final AtomicInteger overlaps = new AtomicInteger();

    // Written by holders, of whom a shared lock has several.
    private final Samples handoffs = new Samples();
    private volatile int last = -1;
    private volatile long released;
    private long sections;
    private long crossed;
    private long worstWait;

    ContendedBench(Servers servers, Kind kind, Request request) throws Failure {
        this.servers = servers;
        this.kind = kind;
        this.name = request.name(kind);
        this.tasks = Math.toIntExact(request.number("tasks"));
        this.nanos = request.number("ms") * 1_000_000;
        this.holdNanos = request.number("hold_us") * 1_000;
        this.pauseNanos = request.number("pause_us") * 1_000;
        this.busy = request.flag("busy", false);
    }

    Map<String, Object> run() throws InterruptedException {
        long end = System.nanoTime() + nanos;
        Threads.runAll(tasks, task -> {
            RLock lock = kind.lock(servers, name);
            while (System.nanoTime() < end) {
                section(lock, task);
                LockSupport.parkNanos(pauseNanos);
            }
        });
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("sections", sections);
        result.put("handoff_p50_us", handoffs.quantileUs(0.50));
        result.put("handoff_p99_us", handoffs.quantileUs(0.99));
        result.put("cross", sections == 0 ? 0.0 : (double) crossed / sections);
        result.put("worst_wait_ms", worstWait / 1_000_000);
        result.put("overlaps", overlaps.get());
        return result;
    }

    private void section(RLock lock, int task) {
        long asked = System.nanoTime();
        Kind.lock(lock);
        long entered = System.nanoTime();
        if (inside.incrementAndGet() != 1 && !kind.isShared()) {
            overlaps.incrementAndGet();
        }
        note(task, asked, entered);
        stay();
        inside.decrementAndGet();
        released = System.nanoTime();
        lock.unlock();
    }

    private void stay() {
        if (busy) {
            long end = System.nanoTime() + holdNanos;
            while (System.nanoTime() < end) {
                Thread.onSpinWait();
            }
        } else {
            LockSupport.parkNanos(holdNanos);
        }
    }

    private synchronized void note(int task, long asked, long entered) {
        if (last >= 0 && asked < released) {
            handoffs.add(entered - released);
        }
        crossed += last >= 0 && last != task ? 1 : 0;
        sections++;
        worstWait = Math.max(worstWait, entered - asked);
        last = task;
    }
}
