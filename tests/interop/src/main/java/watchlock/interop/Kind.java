package watchlock.interop;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.util.Locale;
import java.util.function.BiFunction;
import org.redisson.RedissonRedLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** The kinds of lock that Redisson has, by the protocol's words. */
enum Kind {
    LOCK(ofOne(RedissonClient::getLock)),
    /** Called by a list of names: plain locks, taken in its order; of several servers, all of them on each. */
    MULTI((servers, names) -> servers.client().getMultiLock(servers.locks(Names.list(names)))),
    /** Called by a list of one name: the plain lock on each server. */
    RED((servers, names) -> redLock(servers.locks(Names.list(names)))),
    FAIR(ofOne(RedissonClient::getFairLock)),
    READ(ofOne((client, name) -> client.getReadWriteLock(name).readLock())),
    WRITE(ofOne((client, name) -> client.getReadWriteLock(name).writeLock())),
    FENCED(ofOne(RedissonClient::getFencedLock)),
    SPIN(ofOne(RedissonClient::getSpinLock)),
    /** One of four permits of a semaphore, for the benchmark: it can be taken and given back, and nothing else. */
    PERMITS(ofOne((client, name) -> permit(client.getSemaphore(name))));

    private final BiFunction<Servers, String, RLock> getter;

    Kind(BiFunction<Servers, String, RLock> getter) {
        this.getter = getter;
    }

    private static BiFunction<Servers, String, RLock> ofOne(BiFunction<RedissonClient, String, RLock> getter) {
        return (servers, name) -> getter.apply(servers.client(), name);
    }

    /** It is deprecated, and what services have. */
    private static RLock redLock(RLock[] locks) {
        return new RedissonRedLock(locks);
    }

    private static RLock permit(RSemaphore semaphore) {
        semaphore.trySetPermits(4);
        InvocationHandler calls = (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "lock" -> semaphore.acquire();
                case "unlock" -> semaphore.release();
                default -> throw new UnsupportedOperationException(method.getName());
            }
            return null;
        };
        ClassLoader loader = RLock.class.getClassLoader();
        return (RLock) Proxy.newProxyInstance(loader, new Class<?>[] {RLock.class}, calls);
    }

    static Kind of(String word) throws Failure {
        for (Kind kind : values()) {
            if (kind.name().toLowerCase(Locale.ROOT).equals(word)) {
                return kind;
            }
        }
        throw Failure.unsupported("kind " + word);
    }

    RLock lock(Servers servers, String name) {
        return getter.apply(servers, name);
    }

    /** Whether it is called by a list of names. */
    boolean isListed() {
        return this == MULTI || this == RED;
    }

    /** Whether there are locks of it where there are several servers, or only one. */
    boolean isOf(Servers servers) {
        return this == MULTI || servers.areSeveral() == (this == RED);
    }

    /** Whether several owners may hold one name. */
    boolean isShared() {
        return this == READ || this == PERMITS;
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
