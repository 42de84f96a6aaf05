package watchlock.interop;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The clients of a session: one, or one for each of several independent servers. */
record Servers(List<RedissonClient> clients) {
    static Servers open(Request request) throws Failure {
        return new Servers(Clients.open(request));
    }

    /** The only one, or the first. */
    RedissonClient client() {
        return clients.get(0);
    }

    boolean areSeveral() {
        return clients.size() > 1;
    }

    String id() {
        return client().getId();
    }

    /** The lock of each of the names on each server, server by server. */
    RLock[] locks(List<String> names) {
        return clients.stream()
                .flatMap(client -> names.stream().map(client::getLock))
                .toArray(RLock[]::new);
    }

    void shutdown(int withinSeconds) {
        clients.forEach(client -> client.shutdown(0, withinSeconds, TimeUnit.SECONDS));
    }
}
