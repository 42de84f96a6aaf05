package watchlock.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RedissonClient;

/** The operations on semaphores, each one call of Redisson's, and the permits that this process took by them. */
final class PermitOps {
    static final Set<String> OPS = Set.of(
            "acquire", "try_acquire", "release", "set_permits", "permits", "add_permits", "drain_permits");

    private final AtomicLong numbers = new AtomicLong();
    private final Map<String, Grant> grants = new ConcurrentHashMap<>();

    private record Grant(Permits of, int permits, List<String> ids) {
        int giveBack() {
            return of.giveBack(permits, ids);
        }
    }

    Map<String, Object> run(RedissonClient client, Request request, Timed timed) throws Exception {
        Permits of = Permits.of(client, request.text("kind"), request.text("name"));
        return switch (request.op()) {
            case "acquire" -> take(of, request, null, timed);
            case "try_acquire" -> take(of, request, request.number("wait_ms"), timed);
            case "release" -> Map.of("released", release(of, request, timed));
            case "set_permits" -> {
                int permits = Math.toIntExact(request.number("permits"));
                Long ttl = optional(request, "ttl_ms");
                yield Map.of("set", timed.call(() -> of.setIfAbsent(permits, ttl)));
            }
            case "permits" -> timed.call(of::counts);
            case "add_permits" -> {
                int permits = Math.toIntExact(request.number("permits"));
                yield timed.call(() -> {
                    of.add(permits);
                    return Map.of();
                });
            }
            default -> Map.of("drained", timed.call(of::drain));
        };
    }

    private Map<String, Object> take(Permits of, Request request, Long waitMs, Timed timed) throws Exception {
        int permits = Math.toIntExact(request.number("permits"));
        Long lease = optional(request, "lease_ms");
        List<String> ids = timed.call(() -> of.take(permits, waitMs, lease));
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("acquired", ids != null);
        if (ids != null) {
            String handle = "java-" + numbers.incrementAndGet();
            grants.put(handle, new Grant(of, permits, ids));
            result.put("handle", handle);
            result.put("ids", ids);
        }
        return result;
    }

    private int release(Permits of, Request request, Timed timed) throws Exception {
        if (request.has("handle")) {
            Grant grant = grants.remove(request.text("handle"));
            if (grant == null) {
                throw new Failure("not_owner", "no such handle");
            }
            return timed.call(grant::giveBack);
        }
        boolean hasIds = request.has("ids");
        List<String> ids = hasIds ? request.texts("ids") : List.of();
        int permits = hasIds ? ids.size() : Math.toIntExact(request.number("permits"));
        return timed.call(() -> of.giveBack(permits, ids));
    }

    /** Gives back everything that was taken and not given back. */
    void giveBack() {
        new TreeMap<>(grants).forEach((handle, grant) -> {
            try {
                grant.giveBack();
            } catch (RuntimeException e) {
                System.err.println("not given back: " + e);
            }
        });
        grants.clear();
    }

    private static Long optional(Request request, String field) throws Failure {
        var number = request.optionalNumber(field);
        return number.isPresent() ? number.getAsLong() : null;
    }
}
