package watchlock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.redisson.api.RLock;

/** Uncontended: each thread locks and unlocks its own name, for a time. */
final class PairsBench {
    private final Servers servers;
    private final Kind kind;
    private final String prefix;
    private final int tasks;
    private final long nanos;

    PairsBench(Servers servers, Kind kind, Request request) throws Failure {
        this.servers = servers;
        this.kind = kind;
        this.prefix = request.text("prefix");
        this.tasks = Math.toIntExact(request.number("tasks"));
        this.nanos = request.number("ms") * 1_000_000;
    }

    Map<String, Object> run() throws InterruptedException {
        List<Samples> samples = new ArrayList<>();
        long end = System.nanoTime() + nanos;
        Threads.runAll(tasks, task -> {
            var own = new Samples();
            synchronized (samples) {
                samples.add(own);
            }
            String name = prefix + task;
            pairs(kind.lock(servers, kind.isListed() ? Names.joined(List.of(name + ":1", name + ":2")) : name), end, own);
        });
        Samples all = Samples.merge(samples);
        return Map.of("pairs", all.size(), "p50_us", all.quantileUs(0.50), "p99_us", all.quantileUs(0.99));
    }

    private static void pairs(RLock lock, long end, Samples samples) {
        for (long start = System.nanoTime(); start < end; ) {
            Kind.lock(lock);
            lock.unlock();
            long now = System.nanoTime();
            samples.add(now - start);
            start = now;
        }
    }
}
