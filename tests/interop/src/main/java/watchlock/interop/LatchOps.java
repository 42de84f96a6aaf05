package watchlock.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.Map;
import java.util.Set;
import org.redisson.api.RCountDownLatch;

/** The operations on a latch, each one call of Redisson's {@link RCountDownLatch}. */
final class LatchOps {
    static final Set<String> ALL = Set.of("latch_set", "latch_count", "latch_down", "latch_await", "latch_delete");

    private LatchOps() {}

    static Map<String, Object> run(Servers servers, Request request, Timed timed) throws Exception {
        RCountDownLatch latch = servers.client().getCountDownLatch(request.text("name"));
        return switch (request.op()) {
            case "latch_set" -> {
                long count = request.number("count");
                yield Map.of("set", timed.call(() -> latch.trySetCount(count)));
            }
            case "latch_count" -> Map.of("count", timed.call(latch::getCount));
            case "latch_down" -> {
                timed.call(() -> {
                    latch.countDown();
                    return null;
                });
                yield Map.of();
            }
            case "latch_await" -> {
                long wait = request.number("wait_ms");
                yield Map.of("reached", timed.call(() -> latch.await(wait, MILLISECONDS)));
            }
            default -> Map.of("deleted", timed.call(latch::delete));
        };
    }
}
