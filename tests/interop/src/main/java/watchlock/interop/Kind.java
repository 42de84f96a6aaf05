package watchlock.interop;

import java.util.Locale;
import java.util.function.BiFunction;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The kinds of lock that Redisson has for one server, by the protocol's words. */
enum Kind {
    LOCK(RedissonClient::getLock),
    /** Called by a list of names: plain locks, taken in its order. */
    MULTI((client, names) -> client.getMultiLock(
            Names.list(names).stream().map(client::getLock).toArray(RLock[]::new))),
    FAIR(RedissonClient::getFairLock),
    READ((client, name) -> client.getReadWriteLock(name).readLock()),
    WRITE((client, name) -> client.getReadWriteLock(name).writeLock()),
    FENCED(RedissonClient::getFencedLock),
    SPIN(RedissonClient::getSpinLock);

    private final BiFunction<RedissonClient, String, RLock> getter;

    Kind(BiFunction<RedissonClient, String, RLock> getter) {
        this.getter = getter;
    }

    static Kind of(String word) throws Failure {
        for (Kind kind : values()) {
            if (kind.name().toLowerCase(Locale.ROOT).equals(word)) {
                return kind;
            }
        }
        throw Failure.unsupported("kind " + word);
    }

    RLock lock(RedissonClient client, String name) {
        return getter.apply(client, name);
    }

    /** Whether it is called by a list of names. */
    boolean isListed() {
        return this == MULTI;
    }

    /** Whether several owners may hold one name. */
    boolean isShared() {
        return this == READ;
    }

    /** Locks without a lease, as a program would do it with this kind. */
    static void lock(RLock lock) {
        if (lock instanceof RFencedLock fenced) {
            fenced.lockAndGetToken();
        } else {
            lock.lock();
        }
    }
}
